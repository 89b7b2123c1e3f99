"""Files of tokens: one ArrayRecord record a document, written whole, counted, known by digest.

ArrayRecord (https://github.com/google/array_record) finds any record directly. Its one surprise: a
file that was cut short or never closed reads as an *empty* one, without an error. So a file is
written under another name, closed, counted, and then renamed. A reader compares its size and count
with the recorded ones. Each block has a hash, which ArrayRecord checks whenever it reads the block.
"""

import contextlib
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.errors import DiskFull, NotWritable
from dipaco.files import file_digest, flush, rename_durably

# A block has so few records that one is read in 0.03 ms, and so many that an index is small:
# with one record a block, opening a file of 60,000 takes 2.9 ms and 520 kB, with eight 0.4 ms.
WRITER_OPTIONS = "group_size:8"
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # for random access


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenFile:
    """One ArrayRecord file of tokens."""

    name: str
    documents: int
    num_bytes: int
    digest: str  # xxh3, 128 bits


class TokenWriter:
    """Writes one ArrayRecord file under another name. `close` counts, digests and renames it."""

    def __init__(self, path: Path):
        from array_record.python.array_record_module import (  # ty: ignore[import-not-found]
            ArrayRecordWriter,
        )

        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.writer = ArrayRecordWriter(str(self.partial), WRITER_OPTIONS)
        self.lengths: list[int] = []
        self.num_bytes = 0

    def write(self, tokens: np.ndarray) -> None:
        with _translate_errors(self.partial):
            self.writer.write(tokens.tobytes())
        self.lengths.append(len(tokens))
        self.num_bytes += tokens.nbytes

    def close(self) -> tuple[TokenFile, list[int]]:
        with _translate_errors(self.partial):
            self.writer.close()
        flush(self.partial)
        reader = open_reader(self.partial)
        written = reader.num_records()
        reader.close()
        if written != len(self.lengths):  # cut short without an error
            problem = f"it holds {written} of {len(self.lengths)} documents"
            raise NotWritable(file=self.partial, problem=problem)
        file = TokenFile(
            name=self.path.name,
            documents=written,
            num_bytes=self.partial.stat().st_size,
            digest=file_digest(self.partial),
        )
        rename_durably(self.partial, self.path)
        return file, self.lengths


@contextlib.contextmanager
def _translate_errors(file: Path) -> Generator[None, None, None]:
    """ArrayRecord raises every error as a RuntimeError with a text."""
    try:
        yield
    except RuntimeError as error:
        if "No space left" in str(error) or "quota" in str(error):
            raise DiskFull(file=file) from error
        raise NotWritable(file=file, problem=error) from error


def open_reader(file: Path) -> Any:
    """An ArrayRecordReader for random access. The caller checks the number of records."""
    from array_record.python.array_record_module import (  # ty: ignore[import-not-found]
        ArrayRecordReader,
    )

    return ArrayRecordReader(str(file), READER_OPTIONS)
