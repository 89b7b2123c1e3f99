"""Shard tokens: the tokens of some documents of a corpus, a path's shard or the held documents,
in files of their own.

    FOLDER/about.json                   which corpus, the type of a token, documents in each file
    FOLDER/tokens_00000.arrayrecord ...   one record a document, in ascending order of their numbers

The documents of a path are all over a corpus, since routing looks at their content. A machine that
reads from a bucket would fetch every corpus file to use a P-th of each. Shard tokens let it fetch
that part alone, for one more copy of the tokens in the store.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from dipaco.data.corpus import Corpus
from dipaco.data.token_files import TokenWriter, open_reader
from dipaco.files import digest_of

FILE_BYTES = 64 << 20  # the same as in a corpus
CHUNK = 1024  # documents in memory at once


class _About(msgspec.Struct):
    corpus: str  # its digest
    token_type: str
    counts: list[int]  # documents in each file


def shard_tokens_digest(corpus_digest: str, documents: np.ndarray) -> str:
    """Identifies the tokens of some documents (ascending numbers) of a corpus."""
    return digest_of(corpus_digest, np.asarray(documents, dtype=np.int64))


def write_shard_tokens(corpus: Corpus, documents: np.ndarray, folder: Path) -> None:
    """Writes the tokens of some documents (ascending numbers) into a new folder."""
    folder.mkdir()
    token_type = corpus.manifest.token_type
    counts: list[int] = []
    writer: TokenWriter | None = None
    for tokens in _in_chunks(corpus, documents):
        if writer is None:
            writer = TokenWriter(_file(folder, len(counts)))
        writer.write(tokens.astype(token_type))
        if writer.num_bytes >= FILE_BYTES:
            counts.append(writer.close()[0].documents)
            writer = None
    if writer is not None:
        counts.append(writer.close()[0].documents)
    about = _About(corpus=corpus.digest, token_type=token_type, counts=counts)
    (folder / "about.json").write_bytes(msgspec.json.encode(about))


class ShardTokens:
    """Shard tokens, open for reading by the documents' numbers in the corpus.

    Args:
      folder: written by `write_shard_tokens`. Its files are open, and may be deleted.
    """

    def __init__(self, folder: Path, documents: np.ndarray):
        about = msgspec.json.decode((folder / "about.json").read_bytes(), type=_About)
        assert sum(about.counts) == len(documents), "the folder is named for its documents"
        self.digest = about.corpus
        self._documents, self._token_type = np.asarray(documents), about.token_type
        self._starts = np.cumsum([0, *about.counts])
        self._readers = [open_reader(_file(folder, i)) for i in range(len(about.counts))]

    def tokens(self, document_numbers: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """The tokens of some documents, in the order asked for: int32, one array each."""
        numbers = np.asarray(document_numbers, dtype=np.int64)
        places = np.searchsorted(self._documents, numbers)
        assert (self._documents[places] == numbers).all(), "a document of another shard"
        files = np.searchsorted(self._starts, places, side="right") - 1
        found: list[np.ndarray] = [np.zeros(0, dtype=np.int32)] * len(numbers)
        for file in np.unique(files).tolist():
            asked = np.flatnonzero(files == file)
            records = (places[asked] - self._starts[file]).tolist()
            read = self._readers[file].read(records)
            for place, record in zip(asked.tolist(), read, strict=True):
                found[place] = np.frombuffer(record, dtype=self._token_type).astype(np.int32)
        return found


def _in_chunks(corpus: Corpus, documents: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(documents), CHUNK):
        yield from corpus.tokens(documents[start : start + CHUNK])


def _file(folder: Path, number: int) -> Path:
    return folder / f"tokens_{number:05d}.arrayrecord"
