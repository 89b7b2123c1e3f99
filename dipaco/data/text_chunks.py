"""Texts on disk until they are tokens: a folder with files of about a megabyte each, in order."""

from pathlib import Path

import msgspec

from dipaco.files import write_whole

CHUNK_BYTES = 1 << 20


def chunk_file(folder: Path, chunk: int) -> Path:
    return folder / f"text_{chunk:06d}.msgpack"


def read_chunk(file: Path) -> list[str]:
    return msgspec.msgpack.decode(file.read_bytes(), type=list[str])


class ChunkWriter:
    """Writes texts into a folder; a chunk ends with the text with which it is large enough.

    Attributes:
      lengths: of each chunk that is written, its texts.
      num_bytes: of each, the bytes of UTF-8.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._texts: list[str] = []
        self._num_bytes = 0
        self.lengths: list[int] = []
        self.num_bytes: list[int] = []

    def add(self, text: str, num_bytes: int) -> bool:
        """Returns whether that was the last text of a chunk."""
        self._texts.append(text)
        self._num_bytes += num_bytes
        is_full = self._num_bytes >= CHUNK_BYTES
        if is_full:
            self.close()
        return is_full

    def close(self) -> None:
        """Writes what is left as a chunk."""
        if not self._texts:
            return
        file = chunk_file(self._folder, len(self.lengths))
        write_whole(file, lambda stream: stream.write(msgspec.msgpack.encode(self._texts)))
        self.lengths.append(len(self._texts))
        self.num_bytes.append(self._num_bytes)
        self._texts, self._num_bytes = [], 0
