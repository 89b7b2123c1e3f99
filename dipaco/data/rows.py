"""Rows of files with columns: JSON lines, Parquet, and data sets of the hub.

Only the columns that are asked for are read, so nothing else in a file can be wrong. Whatever a
library raises about a value becomes a sentence with the file, the row and the column.
"""

import collections
import decimal
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dipaco.data.document import PIECE, BadRows, Document
from dipaco.data.errors import BadRecord, MissingColumn, half_in_words
from dipaco.data.slices import FilePart
from dipaco.data.source_url import SourceUrl
from dipaco.data.text_files import BLOCK_BYTES, MOST_NAMED, open_file
from dipaco.errors import BadSource, DipacoError, needs_extra, one_line
from dipaco.plural import listed

if TYPE_CHECKING:
    import pyarrow

ROWS_AT_ONCE = 256


class Columns(NamedTuple):
    """Names of the columns that are read. Without a `domain`, a column of that name is read where
    there is one.
    """

    text: str = "text"
    domain: str | None = None
    group: str | None = None  # or "piece"

    def among(self, names: Sequence[str], file: str) -> list[str]:
        """The columns to read of a file that has columns of these names.

        Raises:
          MissingColumn: one that was asked for is not there.
        """
        asked = self._asdict()
        if self.group == "piece":
            del asked["group"]
        for option, column in asked.items():
            if column and column not in names:
                raise _missing(names, column, option).error(file, "its schema")
        return [name for name in names if name in {"domain", *asked.values()}]


class BadRow(Exception):
    """A row that cannot be read, or a value of one."""

    def __init__(self, problem: str, kind: type[DipacoError] = BadRecord, **values: str):
        super().__init__(problem)
        self._kind, self._values = kind, values

    def error(self, file: str, place: "str | Line") -> DipacoError:
        return self._kind(file=file, place=str(place), problem=self, **self._values)


class SourceRow(NamedTuple):
    """One row of a file with columns, and its place in the file."""

    file: str
    place: "str | Line"
    values: Mapping[str, Any] | BadRow  # by column; each value may be a `BadRow`, too


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


def documents_of(
    rows: Iterator[SourceRow], columns: Columns, bad_rows: BadRows
) -> Iterator[Document]:
    """The document of each row.

    Raises:
      BadRecord, MissingColumn: a row cannot be read, and `bad_rows` refuses those.
    """
    for row in rows:
        bad_rows.of += 1
        try:
            document = _document(row, columns)
        except BadRow as bad:
            if not bad_rows.are_skipped:
                raise bad.error(row.file, row.place) from None
            bad_rows.add(row.file, row.place, bad)
        else:
            yield document


def _document(row: SourceRow, columns: Columns) -> Document:
    if isinstance(row.values, BadRow):
        raise row.values
    text = _value(row.values, columns.text, "text")
    if not isinstance(text, str):
        raise BadRow(f"column `{columns.text}` holds {type(text).__name__}, not text")
    _check_whole(columns.text, text)
    column = columns.domain or "domain"
    is_named = columns.domain is not None or column in row.values
    domain = _name(_value(row.values, column, "domain")) if is_named else None
    if domain is None:
        domain = Path(row.file).name.split(".")[0]
    else:
        _check_whole(column, domain)
    if columns.group in (None, "piece"):
        return Document(text, domain, columns.group and PIECE)
    return Document(text, domain, _name(_value(row.values, columns.group, "group")))


def _value(values: Mapping[str, Any], column: str, option: str) -> Any:
    if column not in values:
        raise _missing(list(values), column, option)
    if isinstance(value := values[column], BadRow):
        raise value
    return value


def _missing(names: Sequence[str], column: str, option: str) -> BadRow:
    found = listed((f"`{name}`" for name in names), MOST_NAMED) or "none"
    problem = f"no column `{column}`; it has {found}"
    return BadRow(problem, MissingColumn, option=option)


def _name(value: Any) -> str | None:
    """The name that a value of a column gives to a domain or a group. None if it gives none: it is
    missing (null, or NaN as in a column of numbers) or blank.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    name = "" if value is None or value != value else str(value)
    return name if name.strip() else None


def _check_whole(column: str, text: str) -> None:
    """Raises `BadRow`: UTF-8 cannot write the text. JSON can spell half of a character, and a line
    of it may have bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"column `{column}` holds {half_in_words(error)}") from None


# --- JSON lines -------------------------------------------------------------------------------


def json_rows(part: FilePart) -> Iterator[SourceRow]:
    file, start, stop = part
    with open_file(file) as stream:
        offset = start
        if start:  # the line that begins before it is another slice's
            stream.seek(start - 1)
            offset += len(stream.readline()) - 1
        began = offset
        for number, line in enumerate(stream, start=1):
            if stop is not None and offset >= stop:
                break
            if line.strip():
                yield SourceRow(str(file), Line(file, began, number), _json_values(line))
            offset += len(line)


def _json_values(line: bytes) -> dict[str, Any] | BadRow:
    text = line.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        values = _parsed(text)
    except json.JSONDecodeError as error:
        return BadRow(f"not JSON ({error}){_hint(text)}")
    return values if isinstance(values, dict) else BadRow("not a JSON object")


def _hint(text: str) -> str:
    if "\r" in text.strip():
        return "; carriage returns alone end its lines, where line feeds should"
    if not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text):
        return "; it is no UTF-8 either: it may be compressed under another ending"
    return ""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):  # a number of too many digits, too many brackets
        return json.loads(_without_depths(text), parse_int=decimal.Decimal)


def _without_depths(text: str) -> str:
    """JSON without the content of its values: a column of a list or an object is not read."""
    depth, kept, start = 0, [], 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[][{}]', text, re.DOTALL):
        if token[0] in "[{":
            depth += 1
            if depth == 2:
                kept.append(text[start : token.end()])
        elif token[0] in "]}":
            depth -= 1
            if depth == 1:
                start = token.start()
    return "".join(kept) + (text[start:] if depth < 2 else "")


# --- Parquet ----------------------------------------------------------------------------------


def parquet_rows(part: FilePart, columns: Columns) -> Iterator[SourceRow]:
    import pyarrow
    import pyarrow.parquet

    file, number = str(part.file), 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            asked = columns.among(table.schema_arrow.names, file)
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=asked):
                values = {
                    name: _values_of(name, array)
                    for name, array in zip(batch.schema.names, batch.columns, strict=True)
                }
                for place in range(batch.num_rows):
                    row = {name: values[name][place] for name in values}
                    yield SourceRow(file, f"row {number}", row)
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise BadSource(
            source=file,
            problem=f"{one_line(error)} (row {number} or a later one).",
            advice="Fetch or write that file again.",
        ) from error


class Time(collections.UserString):
    """A time that Python has not, in words. It is no text."""


def _values_of(column: str, array: "pyarrow.Array") -> list[Any]:
    """The values of a column. One that Python cannot have is a `BadRow`."""
    import pyarrow

    if getattr(array.type, "unit", None) == "ns":  # Python's times have none; pandas has
        array = array.cast(pyarrow.string())
        return [value and Time(value) for value in array.to_pylist()]
    try:
        return array.to_pylist()
    except Exception:  # Arrow raises many kinds, such as UnicodeDecodeError
        return [_value_of(column, scalar) for scalar in array]


def _value_of(column: str, scalar: "pyarrow.Scalar") -> Any:
    import pyarrow

    try:
        return scalar.as_py()
    except Exception as error:
        try:
            return Time(scalar.cast(pyarrow.string()).as_py())  # in the year 0
        except Exception:
            return BadRow(f"column `{column}` cannot be read: {one_line(error)}")


# --- the hub ----------------------------------------------------------------------------------


def hub_rows(source: SourceUrl, columns: Columns) -> Iterator[SourceRow]:
    name, _, config = source.place.partition("#")
    if not name:
        advice = "Write for example `hf:roneneldan/TinyStories`."
        raise BadSource(source=source.url, problem="it names no data set.", advice=advice)
    with needs_extra("datasets", package="datasets", feature=source.url):
        import datasets

    number = 0
    try:
        rows = datasets.load_dataset(
            name, config or None, split=source.options.get("split", "train"), streaming=True
        )
        if rows.column_names:
            rows = rows.select_columns(columns.among(rows.column_names, name))
        for number, values in enumerate(rows):
            yield SourceRow(name.rsplit("/", 1)[-1], f"row {number}", values)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadSource(
            source=source.url,
            problem=f"{one_line(error)} (row {number} or a later one).",
            advice="Check the name, the `#config` and the network.",
        ) from error
