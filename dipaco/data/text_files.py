"""Files of text, read in blocks. Bytes that are no text are refused, with their place."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from dipaco.data.document import PIECE, BadRows, Document, last_end
from dipaco.data.errors import BinaryText, BinaryTexts
from dipaco.errors import BadSource
from dipaco.plural import listed

BLOCK_BYTES = 1 << 20
MOST_NAMED = 20  # files or columns in an error
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def text_documents(
    files: Sequence[Path], domain: str | None, group: str | None, bad_rows: BadRows
) -> Iterator[Document]:
    """Each file as one document, in blocks.

    Args:
      domain: None = the name of the file's folder.
      group: "piece" = each piece is its own. None = the file is one.

    Raises:
      BinaryText, BinaryTexts: files are no text, and `bad_rows` refuses those.
    """
    for number, file in enumerate(files):
        bad_rows.of += 1
        if bad_rows.are_skipped and (error := _problem_of(file)) is not None:
            bad_rows.add(file, f"byte {error.values['offset']}", error.values["problem"])
            continue
        edges = domain or file.absolute().parent.name or "text", PIECE if group else str(file)
        block, begins = None, True
        for later in _text_blocks(file, files[number + 1 :]):
            if not later.strip():
                continue  # no document, and so no edge of one
            if block is not None:
                yield Document(block, *edges, begins, ends=False)
                begins = False
            block = later
        if block is not None:
            yield Document(block, *edges, begins)


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
        named = (
            f"{each.values['file']} ({each.values['problem']} at byte {each.values['offset']})"
            for each in problems
        )
        raise BinaryTexts(count=len(problems), files=listed(named, MOST_NAMED)) from None


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
    with open_file(file) as stream:
        while block := stream.read(BLOCK_BYTES):
            data = rest + block
            end = data.rfind(b"\n") + 1
            if not end:
                end = len(data) if len(block) < BLOCK_BYTES else last_end(data, 0, len(data) - 4)
            yield _decoded(data[:end], file, offset)
            offset, rest = offset + end, data[end:]
    if rest:
        yield _decoded(rest, file, offset)


def _decoded(data: bytes, file: str | Path, offset: int = 0) -> str:
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


@contextlib.contextmanager
def open_file(file: Path) -> Generator[BinaryIO, None, None]:
    """Opens a file, also one of `COMPRESSED`. Errors while it is read become `BadSource`."""
    try:
        with _stream(file) as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        advice = "Check its permissions, and that it came whole."
        raise BadSource(source=str(file), problem=f"{error}.", advice=advice) from error


def _stream(file: Path) -> BinaryIO:
    if file.suffix in OPENERS:
        return cast(BinaryIO, OPENERS[file.suffix](file, "rb"))
    if file.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(cast(Any, pyarrow.input_stream(os.fspath(file), "zstd")))
    return file.open("rb")
