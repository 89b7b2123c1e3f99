"""The text of the Python installation itself: the last resort when no package can be fetched.

Three domains that every installation has, some of them small: the standard library's sources, the C
headers, and the language reference that `help()` shows. Enough to see a run work, not to draw
conclusions from.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import xxhash

from dipaco.data.document import Document

PYTHON_LICENCE = "PSF-2.0"
INSTALLATION_LICENCES = dict.fromkeys(("code_python", "code_c", "en_manual"), PYTHON_LICENCE)
NOT_WANTED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}


def installation_documents(max_bytes_per_domain: int | None = None) -> Iterator[Document]:
    """Sources, headers and reference texts; a file or a topic is a group."""
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
