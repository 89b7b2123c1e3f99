"""The URL-like string of a source, and the files that it names."""

import glob
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from dipaco.data.document import printable
from dipaco.errors import BadSetting, BadSource
from dipaco.plural import are, counted

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Endings of the files that are read of a folder, by kind. Only JSON lines may be compressed.
SUFFIXES = {
    "text": (".txt",),
    "jsonl": tuple(lines + end for lines in (".jsonl", ".ndjson") for end in ("", *COMPRESSED)),
    "parquet": (".parquet",),
}
MOST_ENDINGS = 4  # a sentence names no more
ALL_SUFFIXES = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
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
    place, query = rest.removesuffix("?"), ""
    if options := re.fullmatch(r"(.*)\?(\w+=[^?]*)", rest, re.DOTALL):
        place, query = options.groups()
    return SourceUrl(url, kind, place, dict(parse_qsl(query, keep_blank_values=True)))


def check_kind(url: str) -> None:
    """Raises `BadSetting`: it begins with no kind of source. Says what a person may have meant: in
    a list as Python or a shell leaves it, the quotes and brackets are not meant.
    """
    if _has_kind(url):
        return
    bare, rest = url.strip("[]'\" "), url.partition(":")[2]
    meant = bare if _has_kind(bare) else f"text:{rest or bare or 'notes'}"
    kinds = ", ".join(f"{each}:" for each in KINDS)
    raise BadSetting(
        name="data.sources",
        value=url,
        expected=f"sources that begin with {kinds}; several are separated by commas",
        hint=f" Write for example `--set data.sources={shlex.quote(meant)}`.",
    )


def _has_kind(url: str) -> bool:
    kind, colon, _ = url.partition(":")
    return bool(colon) and kind in KINDS


def files_of(source: SourceUrl) -> list[Path]:
    """The files of a source of files, by name: all that its glob matches, or all below its
    folder that have a suffix of its kind. `~` is one's own folder.

    Raises:
      BadSource: there is none.
    """
    if not source.place:  # not the folder that all others are in
        advice = f"Write for example `{source.kind}:notes`."
        raise BadSource(source=source.url, problem="it names no file or folder.", advice=advice)
    place = os.path.expanduser(source.place)
    suffixes = SUFFIXES[source.kind]
    # A name that is also a pattern is the name: `notes [1].txt`.
    if os.path.isdir(place):
        names = _below(place, suffixes)
    elif os.path.isfile(place):
        names = [place]
    else:
        names = _matches(place)
    if files := [Path(name) for name in sorted(names) if os.path.isfile(name)]:
        return files
    if os.path.isdir(place):
        raise BadSource(
            source=source.url,
            problem=f"the folder `{place}` has no file that ends with {' or '.join(suffixes)}.",
            advice=f"Name others by their ending, as `{source.kind}:{place.rstrip('/')}/**/*.md`.",
        )
    problem = f"what `{place}` names is no file" if names else f"no file matches `{place}`"
    problem = f"{problem} (seen from {Path.cwd()})."
    raise BadSource(source=source.url, problem=problem, advice="Check the path.")


def sources_of(place: str) -> list[str]:
    """The URLs of what a person names without a kind: a file, a folder, or a glob. The kind of
    a file follows from its suffix, text unless it is of JSON lines or Parquet. Of a folder, the
    files of all kinds are meant. A URL of a source is itself.

    Raises:
      BadSource: there is no such file.
    """
    if place.partition(":")[0] in KINDS and not os.path.exists(place):
        return [place]
    place = os.path.expanduser(place)
    if os.path.isdir(place):
        names = _below(place, ALL_SUFFIXES)
        expected = f"The folder may hold files that end with {', '.join(ALL_SUFFIXES)}."
    elif os.path.exists(place):
        names, expected = [place], "What has this name is a pipe or a device."
    else:
        names = _matches(place)
        expected = "Check the name."
    found = sorted(name for name in names if os.path.isfile(name))
    if not found:
        raise BadSource(source=place, problem="there is no such file.", advice=expected)
    return [_url_of_file(name) for name in found]


def _below(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """The names that end so, at any depth, but not in hidden folders."""
    names = _matches(f"{glob.escape(folder)}/**/*")
    return [name for name in names if name.endswith(suffixes)]


def _matches(pattern: str) -> list[str]:
    """Same as a recursive `glob.glob`, but a folder whose name is also a pattern is itself, and
    `**` enters each folder once, however many links lead there. A link to a folder above it would
    otherwise have no end.
    """
    folder = os.path.dirname(pattern)
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    pattern = glob.escape(folder) + pattern[len(folder) :]
    found = re.search(r"(^|/)\*\*(/|$)", pattern)
    if found is None:
        return glob.glob(pattern)
    before, after = pattern[: found.end(1)], pattern[found.end() :] or "*"
    seen = set[tuple[int, int]]()
    folders = [each for top in (glob.glob(before) or [before]) for each in _folders(top, seen)]
    names = (_matches(os.path.join(glob.escape(folder), after)) for folder in folders)
    return list(dict.fromkeys(itertools.chain.from_iterable(names)))


def _folders(top: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """A folder and those below it, but for hidden ones and those seen before. Links are followed
    last, so that a folder that is reached without one keeps that name.

    Raises:
      BadSource: one of them cannot be read.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            problem = f"the folder `{error.filename}` cannot be read: {error.strerror}."
            raise BadSource(source=top, problem=problem, advice="Allow that, or name others.")

    tops = [top]
    for start in tops:  # It grows.
        for folder, inner, _ in os.walk(start or ".", onerror=refuse):
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            inner[:] = [] if identity in seen else sorted(n for n in inner if n[0] != ".")
            if identity not in seen:
                seen.add(identity)
                places = (os.path.join(folder, name) for name in inner)
                tops += [place for place in places if os.path.islink(place)]
                yield folder


def _url_of_file(name: str) -> str:
    kinds = (kind for kind, suffixes in SUFFIXES.items() if name.endswith(suffixes))
    # It becomes a pattern, since a name may hold what begins a source's options.
    return f"{next(kinds, 'text')}:{glob.escape(name)}"


def notes_of_files(place: str, suffixes: tuple[str, ...], files: Sequence[Path] = ()) -> list[str]:
    """Sentences on the files of a place: on files of a folder that are passed over for their
    ending, on links that lead nowhere, and on files that are empty.

    Args:
      place: a folder, or what names `files` itself, so that no other is missed.
      suffixes: endings of the files that are read of a folder.
      files: that are read, where the place is no folder.
    """
    notes = []
    place = os.path.expanduser(place)
    names = _below(place, ("",)) if os.path.isdir(place) else _matches(place)
    if lost := sorted(name for name in names if not os.path.exists(name)):
        links = counted(len(lost), "link")
        name = printable(lost[0])
        notes.append(
            f"Not read: {links} to what is not there, such as `{name}`. Is a disk missing?"
        )
    if os.path.isdir(place):
        files = [Path(name) for name in names if os.path.isfile(name)]
        others = [file for file in files if not file.name.endswith(suffixes)]
        files = [file for file in files if file.name.endswith(suffixes)]
        if others:
            endings = Counter(file.suffix for file in others if file.suffix).most_common(1)
            glob_of = f"{place.rstrip('/')}/**/*{endings[0][0] if endings else ''}"
            notes.append(
                f"Of the files in `{place}`, read: {_by_ending(files) or 'none'}. "
                f"Not read: {_by_ending(others)}. `{glob_of}` names others."
            )
    if empty := [file for file in files if not file.stat().st_size]:
        some = f"{counted(len(empty), 'file')} {are(len(empty))} empty"
        notes.append(f"{some}, such as `{printable(str(empty[0]))}`.")
    return notes


def _by_ending(files: Sequence[Path]) -> str:
    """`115 .py, 60 .md`, most frequent first."""
    by_ending = Counter(file.suffix for file in files).most_common()
    parts = [f"{count:,} {ending or 'without an ending'}" for ending, count in by_ending]
    if len(parts) > MOST_ENDINGS + 1:
        rest = sum(count for _, count in by_ending[MOST_ENDINGS:])
        parts[MOST_ENDINGS:] = [f"{rest:,} others"]
    return ", ".join(parts)
