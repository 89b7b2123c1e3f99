"""The URL-like string of a source, and the files that it names."""

import glob
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from dipaco.errors import BadSource

# What is read of a folder, by kind; `.gz` is read of JSON lines alone.
SUFFIXES = {
    "text": (".txt",),
    "jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
}
KINDS = ("packages", *SUFFIXES, "hf", "toy")


class SourceUrl(NamedTuple):
    """`kind:place#fragment?option=value`, parsed."""

    url: str
    kind: str
    place: str
    options: dict[str, str]


def parse_url(url: str) -> SourceUrl:
    """`jsonl:data/*.jsonl?text=body` -> kind, place and options.

    A `?` begins the options only if `name=` follows: in a glob it matches any character.
    """
    kind, _, rest = url.partition(":")
    place, mark, query = rest.rpartition("?")
    if not mark or "=" not in query:
        place, query = rest.removesuffix("?"), ""
    return SourceUrl(url, kind, place, dict(parse_qsl(query, keep_blank_values=True)))


def files_of(source: SourceUrl) -> list[Path]:
    """The files of a source of files, by name: those that its glob matches, or those below its
    folder that have a suffix of its kind. `~` is one's own folder.

    Raises:
      BadSource: there is none.
    """
    place = os.path.expanduser(source.place)
    suffixes = SUFFIXES[source.kind]
    # A name that is also a pattern is the name: `notes [1].txt`.
    if Path(place).is_dir():
        names = _below(place, suffixes)
    elif Path(place).is_file():
        names = [place]
    else:
        names = glob.glob(place, recursive=True)
    if files := [Path(name) for name in sorted(names) if Path(name).is_file()]:
        return files
    if Path(place).is_dir():
        raise BadSource(
            source=source.url,
            problem=f"the folder `{place}` has no file that ends with {' or '.join(suffixes)}.",
            advice=f"Name others by their ending, as `{source.kind}:{place.rstrip('/')}/**/*.md`.",
        )
    raise BadSource(
        source=source.url,
        problem=f"no file matches `{place}` (seen from {Path.cwd()}).",
        advice="Check the path.",
    )


def sources_of(place: str) -> list[str]:
    """The URLs of what a person names without a kind: a file, a folder, or a glob. The kind of
    a file follows from its suffix, text unless it is of JSON lines or Parquet; of a folder, the
    files of all kinds are meant. A URL of a source is itself.

    Raises:
      BadSource: there is no such file.
    """
    if place.partition(":")[0] in KINDS and not os.path.exists(place):
        return [place]
    place = os.path.expanduser(place)
    if os.path.isdir(place):
        endings = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        names = _below(place, endings)
        expected = f"The folder may hold files that end with {', '.join(endings)}."
    elif os.path.exists(place):
        names, expected = [place], ""
    else:
        names = glob.glob(place, recursive=True)
        expected = "Check the name."
    found = sorted(name for name in names if os.path.isfile(name))
    if not found:
        raise BadSource(source=place, problem="there is no such file.", advice=expected)
    return [_url_of_file(name) for name in found]


def _below(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """The names that end so, at any depth; not those in hidden folders."""
    names = glob.glob(f"{glob.escape(folder)}/**/*", recursive=True)
    return [name for name in names if name.endswith(suffixes)]


def _url_of_file(name: str) -> str:
    kinds = (kind for kind, suffixes in SUFFIXES.items() if name.endswith(suffixes))
    # As a pattern, since a name may hold what begins a source's options.
    return f"{next(kinds, 'text')}:{glob.escape(name)}"
