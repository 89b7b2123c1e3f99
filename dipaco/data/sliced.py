"""The work of `prepare` on one slice of the text: reading it, sampling it, making it tokens; and
the tokens of all slices in the order of the corpus.

The text of a slice is one file, the UTF-8 of its pieces without a gap; so are its tokens. How long
each piece is stands in columns beside it.
"""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dipaco.data.config import DataConfig, num_processes
from dipaco.data.encode import encode_chunks
from dipaco.data.merging import SliceTable, table_of_pieces
from dipaco.data.reading import Pieces
from dipaco.data.slices import SourcePart
from dipaco.data.sources import open_source
from dipaco.data.text_chunks import CHUNK_BYTES, ChunkWriter
from dipaco.data.tokenizer import Tokenizer


def read_slice(
    config: DataConfig,
    parts: Sequence[SourcePart],
    texts: Path,
    say: Callable[[str], None],
    count: Callable[[int], None],
) -> SliceTable:
    """Reads parts of sources; writes their text to the file `texts`.

    Args:
      config: sources, bounds, and how long a piece is.
      parts: what is read, in order.
      texts: where to write.
      say: called with a sentence before what takes time.
      count: called with the bytes read so far.

    Raises:
      BadSource, BinaryText, BadRecord, MissingColumn, ExtraMissing.
    """
    pieces = Pieces()
    with texts.open("wb") as stream:
        counted = 0

        def keep(data: bytes) -> None:
            nonlocal counted
            stream.write(data)
            counted += len(data)
            if counted >= CHUNK_BYTES:
                counted = 0
                count(pieces.num_bytes)

        for part in parts:
            url = config.sources[part.source]
            bound = config.max_bytes_per_domain
            source = open_source(url, max_bytes_per_domain=bound, say=say, part=part)
            pieces.read(source, config, keep)
    return table_of_pieces(pieces, [part.source for part in parts])


def texts_where(chosen: np.ndarray, num_bytes: np.ndarray, texts: memoryview) -> Iterator[str]:
    """The chosen texts of a slice: bool [n] of texts of [n] bytes, in one."""
    ends = np.cumsum(num_bytes, dtype=np.int64)
    for number in np.flatnonzero(chosen):
        end = int(ends[number])
        yield str(texts[end - int(num_bytes[number]) : end], "utf-8")


class _Chunks(NamedTuple):
    """Texts to encode, all of them."""

    folder: Path
    lengths: list[int]  # documents in each chunk

    def kept_in(self, chunk: int) -> np.ndarray:
        return np.ones(self.lengths[chunk], dtype=bool)


def tokenise_slice(
    config: DataConfig,
    texts: Iterator[str],
    tokenizer: Tokenizer,
    file: Path,
    count: Callable[[int], None],
) -> np.ndarray:
    """Writes the tokens of texts to `file`, in `token_type`; returns how many each has, int32.

    Args:
      config: how many processes tokenise; the result does not depend on it.
      texts: of a slice.
      tokenizer: of the run.
      file: where to write. A folder beside it holds the texts meanwhile.
      count: called with the bytes of text that are tokens now.
    """
    folder = file.with_name(f"{file.name}.texts")
    folder.mkdir()
    lengths: list[np.ndarray] = [np.zeros(0, np.int64)]
    try:
        written = ChunkWriter(folder)
        for text in texts:
            written.add(text, len(text.encode()))
        written.close()
        chunks = _Chunks(folder, written.lengths)
        encoded = encode_chunks(
            chunks, range(len(chunks.lengths)), tokenizer, num_processes(config)
        )
        with file.open("wb") as stream, contextlib.closing(encoded):
            for chunk, tokens_of in enumerate(encoded):
                for tokens in tokens_of:
                    stream.write(tokens.astype(tokenizer.token_type).tobytes())
                lengths.append(np.array([len(tokens) for tokens in tokens_of], np.int64))
                count(sum(written.num_bytes[: chunk + 1]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return np.concatenate(lengths).astype(np.int32)


class SliceTokens(NamedTuple):
    """Tokens of the kept documents of one slice."""

    lengths: np.ndarray  # int32 [documents]
    open_tokens: Callable[[], np.ndarray]  # [tokens], in the corpus's type


def tokens_in_chunks(
    slices: Sequence[SliceTokens], documents_of_chunk: Sequence[int], first: int = 0
) -> Generator[list[np.ndarray]]:
    """The tokens of each document, chunk by chunk as the corpus has them.

    Args:
      slices: all, in their order.
      documents_of_chunk: how many kept documents each chunk has.
      first: the chunk to begin with.
    """
    documents = itertools.islice(_documents(slices), sum(documents_of_chunk[:first]), None)
    for count in documents_of_chunk[first:]:
        yield list(itertools.islice(documents, count))


def _documents(slices: Sequence[SliceTokens]) -> Iterator[np.ndarray]:
    for lengths, open_tokens in slices:
        if len(lengths):
            yield from np.split(open_tokens(), np.cumsum(lengths)[:-1])
