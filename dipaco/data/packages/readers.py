"""Readers: the files that a domain takes from an archive -> its texts, each with its group."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Files = Mapping[str, bytes]  # name inside the archive -> content
Texts = Iterable[tuple[str, str]]  # (group, text)


def whole_files(files: Files) -> Texts:
    """Every file a group. Files that are not UTF-8 are skipped: a user cannot repair a package."""
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
