"""Sources of documents: one URL-like string for each, read as a stream.

  packages:                  the text that published packages carry (`packages/`)
  text:GLOB                  text files. The domain is the folder's name, or `?domain=NAME`;
                             text:FOLDER is FOLDER/**/*.txt
  jsonl:GLOB                 JSON lines, also .gz, with `?text=COLUMN&domain=COLUMN&group=COLUMN`
  parquet:GLOB               the same for Parquet
  hf:NAME[#CONFIG]           a data set of the Hugging Face hub, streamed, also `?split=train`
  toy:                       generated clusters (`toy.py`)

A group is never in two splits: a text file, a source file of a package, the documents with one
value of the group column, else the document itself. Where that value is null, the document is its
own group. Where a domain is null, it is the file's. A long document is cut into pieces of one
group. With `?group=piece`, each piece is a group. Text must be UTF-8: a file with other bytes is
refused, naming the first bad byte, since replaced characters would silently be trained on.
"""

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from dipaco.data.document import PIECE, Document, Source, last_end
from dipaco.data.errors import BadRecord, BinaryText, BinaryTexts, MissingColumn, half_in_words
from dipaco.data.slices import FilePart, SourcePart
from dipaco.data.source_url import SUFFIXES, SourceUrl, files_of, notes_of_files, parse_url
from dipaco.errors import BadSource, needs_extra

BLOCK_BYTES = 1 << 20
ROWS_AT_ONCE = 256
MOST_NAMED = 20  # files in an error


def open_source(
    url: str,
    *,
    max_bytes_per_domain: int | None = None,
    say: Callable[[str], None] = lambda message: None,
    part: SourcePart | None = None,
) -> Source:
    """Opens a source.

    Args:
      url: as at the top of this file.
      max_bytes_per_domain: the caller uses no more, so a source may stop there. None = the
        source's own bound, which only `packages:` has.
      say: called with a sentence before what takes time, such as a download.
      part: the part of it to read. None = all.

    Raises:
      BadSource: the kind is unknown, an option is, or no file matches.
    """
    source = parse_url(url)
    documents: Iterator[Document]
    files = files_of(source) if source.kind in SUFFIXES else []
    parts = [FilePart(file) for file in files] if part is None else list(part.files)
    match source.kind:
        case "packages":
            from dipaco.data.packages.source import open_packages

            _allow(source, ())
            return open_packages(max_bytes_per_domain=max_bytes_per_domain, say=say)
        case "toy":
            from dipaco.data.toy import toy_documents

            _allow(source, ("clusters", "documents", "words", "seed"))
            share = range if part is None or part.share is None else part.share.of
            options = {name: _whole(source, name) for name in source.options}
            documents = toy_documents(part=share, **options)
        case "text":
            _allow(source, ("domain", "group"))
            documents = _text_documents(source, [each.file for each in parts])
        case "jsonl":
            _allow(source, ("text", "domain", "group"))
            documents = _column_documents(source, _json_rows(parts))
        case "parquet":
            _allow(source, ("text", "domain", "group"))
            documents = _column_documents(source, _parquet_rows([each.file for each in parts]))
        case "hf":
            _allow(source, ("text", "domain", "group", "split"))
            documents = _column_documents(source, _hub_rows(source))
        case kind:
            raise BadSource(
                source=url,
                problem=f"`{kind}` is not a kind of source.",
                advice="Kinds: packages, text, jsonl, parquet, hf, toy.",
            )
    notes = []
    if source.kind in SUFFIXES and (part is None or part.is_first):
        notes = notes_of_files(source.place, SUFFIXES[source.kind], files)
    return Source(documents=documents, max_bytes_per_domain=max_bytes_per_domain, notes=notes)


# --- the kinds --------------------------------------------------------------------------------


def _text_documents(source: SourceUrl, files: list[Path]) -> Iterator[Document]:
    for number, file in enumerate(files):
        domain = source.options.get("domain") or file.absolute().parent.name or "text"
        group = PIECE if source.options.get("group") == "piece" else str(file)
        block, begins = None, True
        for later in _text_blocks(file, files[number + 1 :]):
            if not later.strip():
                continue  # no document, and so no edge of one
            if block is not None:
                yield Document(block, domain, group, begins, ends=False)
                begins = False
            block = later
        if block is not None:
            yield Document(block, domain, group, begins)


def _text_blocks(file: Path, others: Sequence[Path] = ()) -> Iterator[str]:
    """`_blocks`. If the file is no text, the error also names `others` that are no text, so that a
    person meets them once.
    """
    try:
        yield from _blocks(file)
    except BinaryText as error:
        problems = [error, *filter(None, map(_problem_of, others))]
        if len(problems) == 1:
            raise
        named = [
            f"{each.values['file']} ({each.values['problem']} at byte {each.values['offset']})"
            for each in problems[:MOST_NAMED]
        ]
        if more := len(problems) - len(named):
            named.append(f"and {more:,} more")
        raise BinaryTexts(count=len(problems), files=", ".join(named)) from None


def _problem_of(file: Path) -> BinaryText | None:
    try:
        for _ in _blocks(file):
            pass
    except BinaryText as error:
        return error
    except BadSource:
        return None  # it is said when its turn comes
    return None


def _blocks(file: Path) -> Iterator[str]:
    """A text file in blocks of about a megabyte, cut at the end of a line if there is one."""
    offset, rest = 0, b""
    with _open(file) as stream:
        while block := stream.read(BLOCK_BYTES):
            data = rest + block
            end = data.rfind(b"\n") + 1
            if not end:
                end = len(data) if len(block) < BLOCK_BYTES else last_end(data, 0, len(data) - 4)
            yield decode(data[:end], file, offset)
            offset, rest = offset + end, data[end:]
    if rest:
        yield decode(rest, file, offset)


def decode(data: bytes, file: str | Path, offset: int = 0) -> str:
    """UTF-8 bytes -> text without a byte order mark.

    Raises:
      BinaryText: names the file and the offset of the first byte that is not text.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"0x{data[error.start]:02x} ({error.reason})"
        raise BinaryText(file=file, problem=problem, offset=offset + error.start) from None
    if "\x00" in text:
        raise BinaryText(file=file, problem="a zero byte", offset=offset + data.index(b"\x00"))
    return text.removeprefix("\ufeff") if offset == 0 else text


class SourceRow(NamedTuple):
    """One row of a file with columns, and its place in the file."""

    file: str
    place: "str | Line"
    values: Mapping[str, Any]


class Line(NamedTuple):
    """A line of a file. Its number is counted when it is said: only errors say it."""

    file: Path
    start: int  # the byte that counting began with
    number: int  # lines since then, from 1

    def __str__(self) -> str:
        before = 0
        with self.file.open("rb") as stream:
            for start in range(0, self.start, BLOCK_BYTES):
                before += stream.read(min(BLOCK_BYTES, self.start - start)).count(b"\n")
        return f"line {before + self.number}"


def _column_documents(source: SourceUrl, rows: Iterator[SourceRow]) -> Iterator[Document]:
    text_column = source.options.get("text", "text")
    domain_column = source.options.get("domain")
    group_column = source.options.get("group")
    for row in rows:
        text = _column(row, text_column, "text")
        if not isinstance(text, str):
            problem = f"column `{text_column}` holds {type(text).__name__}, not text"
            raise BadRecord(file=row.file, place=str(row.place), problem=problem)
        _check_whole(row, text_column, text)
        if domain_column:
            domain = _name(_column(row, domain_column, "domain"))
        else:
            domain = _name(row.values.get("domain"))
        domain = domain or Path(row.file).name.split(".")[0]
        group = PIECE if group_column == "piece" else None
        if group_column and group is None:
            group = _name(_column(row, group_column, "group"))
        _check_whole(row, domain_column or "domain", domain)
        yield Document(text, domain, group)


def _name(value: Any) -> str | None:
    """The name that a value of a column gives to a domain or a group. None if it gives none: it is
    missing (null, or NaN as in a column of numbers) or empty.
    """
    return None if value is None or value != value else str(value) or None


def _check_whole(row: SourceRow, column: str, text: str) -> None:
    """Raises `BadRecord`: the text holds half of a character. JSON can spell that, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"column `{column}` holds {half_in_words(error)}"
        raise BadRecord(file=row.file, place=str(row.place), problem=problem) from None


def _column(row: SourceRow, column: str, option: str) -> Any:
    if column not in row.values:
        found = ", ".join(f"`{name}`" for name in row.values) or "none"
        raise MissingColumn(
            file=row.file, place=str(row.place), column=column, found=found, option=option
        )
    return row.values[column]


def _json_rows(parts: list[FilePart]) -> Iterator[SourceRow]:
    for file, start, stop in parts:
        with _open(file) as stream:
            offset = start
            if start:  # the line that begins before it is another slice's
                stream.seek(start - 1)
                offset += len(stream.readline()) - 1
            began = offset
            for number, line in enumerate(stream, start=1):
                if stop is not None and offset >= stop:
                    break
                if line.strip():
                    place = Line(file, began, number)
                    yield SourceRow(str(file), place, _json_object(line, file, place, offset))
                offset += len(line)


def _json_object(line: bytes, file: Path, place: Line, offset: int) -> dict[str, Any]:
    try:
        values = json.loads(decode(line, file, offset))
    except json.JSONDecodeError as error:
        raise BadRecord(file=file, place=str(place), problem=f"not JSON ({error})") from None
    if not isinstance(values, dict):
        raise BadRecord(file=file, place=str(place), problem="not a JSON object")
    return values


def _parquet_rows(files: list[Path]) -> Iterator[SourceRow]:
    import pyarrow
    import pyarrow.parquet

    for file in files:
        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                number = 0
                for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
                    for values in batch.to_pylist():
                        yield SourceRow(str(file), f"row {number}", values)
                        number += 1
        except (pyarrow.ArrowException, OSError) as error:
            advice = "Fetch or write that file again."
            raise BadSource(source=str(file), problem=f"{error}.", advice=advice) from error


def _hub_rows(source: SourceUrl) -> Iterator[SourceRow]:
    with needs_extra("datasets", package="datasets", feature=source.url):
        import datasets

    name, _, config = source.place.partition("#")
    try:
        rows = datasets.load_dataset(
            name, config or None, split=source.options.get("split", "train"), streaming=True
        )
        for number, values in enumerate(rows):
            yield SourceRow(name.rsplit("/", 1)[-1], f"row {number}", values)
    except (OSError, ValueError, RuntimeError) as error:
        advice = "Check the name, the `#config` and the network."
        raise BadSource(source=source.url, problem=f"{error}.", advice=advice) from error


# --- files and options ------------------------------------------------------------------------


@contextlib.contextmanager
def _open(file: Path) -> Generator[BinaryIO, None, None]:
    """Opens a file, also a .gz. Errors while it is read become `BadSource`."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            yield cast(BinaryIO, stream)
    except (OSError, EOFError, zlib.error) as error:
        advice = "Check its permissions, and that it came whole."
        raise BadSource(source=str(file), problem=f"{error}.", advice=advice) from error


def _allow(source: SourceUrl, options: tuple[str, ...]) -> None:
    for option in source.options:
        if option not in options:
            known = ", ".join(options) or "none"
            raise BadSource(
                source=source.url,
                problem=f"`{option}` is not an option of `{source.kind}:`.",
                advice=f"Options: {known}.",
            )


def _whole(source: SourceUrl, option: str) -> int:
    try:
        return int(source.options[option])
    except ValueError:
        advice = f"Write for example `?{option}=4`."
        problem = f"`{option}` must be a whole number."
        raise BadSource(source=source.url, problem=problem, advice=advice) from None
