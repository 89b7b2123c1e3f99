"""Texts of one file -> tokens, by several processes, in the order of the texts.

`python -m dipaco.data.encode TOKENIZER TEXTS` is one of the processes. It reads a job a line and
prints an answer a line. Plain subprocesses rather than `multiprocessing`: they do not import the
caller's main module, share no memory with a process that may hold JAX's threads, and end when their
parent is gone, even killed, because their input ends. A job is a chunk, about a megabyte of text.
Chunk i goes to process i modulo n, so the answers are in order. A service sends SIGTERM to all of
its processes, but only the parent should act on it, and ends the others. So they ignore it, and one
that it reached before it could ignore it is started again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

import dipaco
from dipaco.data.config import DataConfig, num_processes
from dipaco.data.reading import OnProgress, PrepareProgress
from dipaco.data.tokenizer import Tokenizer, load_tokenizer
from dipaco.errors import DiskFull, NotWritable
from dipaco.files import translate_os_errors, write_arrays

CHUNK_BYTES = 1 << 20
CHUNKS_SAVED_AT_ONCE = 64  # about as much work as one file of the corpus holds
JOBS_AHEAD = 2  # per process: it never waits for its next job, and few results wait on disk


class TextPlaces(NamedTuple):
    """Places of N texts in one file of UTF-8."""

    starts: np.ndarray  # [N] int64: first byte
    sizes: np.ndarray  # [N] uint32: bytes

    def chunk(self, first: int, stop: int) -> "TextPlaces":
        return TextPlaces(self.starts[first:stop], self.sizes[first:stop])

    def read(self, stream: BinaryIO) -> Iterator[str]:
        """The texts, from their file."""
        for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True):
            stream.seek(start)
            yield stream.read(size).decode()


def chunk_starts(sizes: np.ndarray) -> np.ndarray:
    """[chunks + 1] int64: the first text of each chunk of texts with these sizes. A chunk ends with
    the text with which it has a megabyte.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    starts, read = [0], 0
    while starts[-1] < len(ends):
        last = int(np.searchsorted(ends, read + CHUNK_BYTES))
        starts.append(min(last + 1, len(ends)))
        read = int(ends[starts[-1] - 1])
    return np.array(starts, dtype=np.int64)


class SliceTokens(NamedTuple):
    """The tokens of the texts of one slice."""

    lengths: np.ndarray  # [texts] int32: tokens of each
    file: Path  # all tokens in one array of the tokenizer's `token_type`


def tokenise_slice(
    config: DataConfig,
    file: Path,
    texts: TextPlaces,
    tokenizer: Tokenizer,
    folder: Path,
    progress: OnProgress,
) -> SliceTokens:
    """Makes texts tokens, in `folder`. Goes on with what an interrupted call has saved there.

    Args:
      folder: for these texts and this tokenizer alone.
      progress: called with the bytes of text that are tokens now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokens_file, lengths_file, token_type = (
        folder / "tokens",
        folder / "lengths",
        tokenizer.token_type,
    )
    starts = chunk_starts(texts.sizes)
    bytes_before = np.append(0, np.cumsum(texts.sizes, dtype=np.int64))
    with (
        translate_os_errors(tokens_file),
        tokens_file.open("ab") as tokens_stream,
        lengths_file.open("ab") as lengths_stream,
    ):
        saved = _saved_lengths(tokens_file, lengths_file, starts, token_type)
        tokens_stream.truncate(_num_bytes(saved, token_type))
        lengths_stream.truncate(saved.nbytes)
        first = int(np.searchsorted(starts, len(saved)))
        chunks = [
            texts.chunk(start, stop)
            for start, stop in zip(starts[first:-1], starts[first + 1 :], strict=True)
        ]
        encoded = encode_chunks(file, chunks, tokenizer, num_processes(config), folder)
        unsaved: list[int] = []
        with contextlib.closing(encoded):
            for chunk, documents in enumerate(encoded, first + 1):
                for tokens in documents:
                    tokens_stream.write(tokens.astype(token_type).tobytes())
                unsaved += [len(tokens) for tokens in documents]
                if chunk % CHUNKS_SAVED_AT_ONCE == 0 or chunk == len(starts) - 1:
                    _flush(tokens_stream)  # before the lengths, which say that they are saved
                    lengths_stream.write(np.array(unsaved, np.int32).tobytes())
                    _flush(lengths_stream)
                    unsaved.clear()
                done, total = int(bytes_before[starts[chunk]]), int(bytes_before[-1])
                progress(PrepareProgress(stage="tokens", done=done, total=total, unit="bytes"))
    return SliceTokens(np.fromfile(lengths_file, np.int32), tokens_file)


def _saved_lengths(
    tokens_file: Path, lengths_file: Path, starts: np.ndarray, token_type: str
) -> np.ndarray:
    """Int32: tokens of each text, of the chunks whose tokens are all saved."""
    lengths = np.fromfile(lengths_file, np.int32)
    whole = lengths[: starts[np.searchsorted(starts, len(lengths), side="right") - 1]]
    is_there = tokens_file.stat().st_size >= _num_bytes(whole, token_type)
    return whole if is_there else whole[:0]


def _num_bytes(lengths: np.ndarray, token_type: str) -> int:
    return int(lengths.sum(dtype=np.int64)) * np.dtype(token_type).itemsize


def _flush(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def encode_chunks(
    file: Path, chunks: list[TextPlaces], tokenizer: Tokenizer, processes: int, folder: Path
) -> Generator[list[np.ndarray], None, None]:
    """Yields the tokens of each text of each chunk. A few chunks are in memory.

    Args:
      folder: for results that wait.
    """
    # Starting a process takes as long as encoding two chunks.
    if processes == 1 or len(chunks) <= 2:
        with file.open("rb") as stream:
            for chunk in chunks:
                yield tokenizer.encode(list(chunk.read(stream)))
        return

    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(_Worker(tokenizer.file, file, folder)))
            for _ in range(min(processes, len(chunks)))
        ]
        ahead = JOBS_AHEAD * len(workers)
        for number, chunk in enumerate(chunks[:ahead]):
            workers[number % len(workers)].send(number, chunk)
        for number in range(len(chunks)):
            worker = workers[number % len(workers)]
            tokens, lengths = worker.receive()
            if number + ahead < len(chunks):
                worker.send(number + ahead, chunks[number + ahead])
            yield np.split(tokens, np.cumsum(lengths)[:-1])


class _Worker:
    """A process that tokenises, as its parent sees it."""

    def __init__(self, tokenizer_file: Path, texts_file: Path, folder: Path):
        self._files, self._folder = (str(tokenizer_file), str(texts_file)), folder
        self._unanswered: deque[str] = deque()  # jobs, the oldest first
        self._begin()

    def _begin(self) -> None:
        home = str(Path(dipaco.__file__).parents[1])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dipaco.data.encode", *self._files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # One thread each: the processes are what fills the CPUs.
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self.process.stdin
        assert self.process.stdout
        self.jobs, self.answers = self.process.stdin, self.process.stdout

    def send(self, number: int, chunk: TextPlaces) -> None:
        job = {
            "starts": chunk.starts.tolist(),
            "sizes": chunk.sizes.tolist(),
            "result": str(self._folder / f"tokens_{number:06d}.npz"),
        }
        self._unanswered.append(json.dumps(job))
        with contextlib.suppress(BrokenPipeError):  # `receive` says why it has ended
            print(self._unanswered[-1], file=self.jobs, flush=True)

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a chunk in one array, and how many each text has."""
        while not (line := self.answers.readline()):
            code = self.process.wait()
            if code != -signal.SIGTERM:
                raise RuntimeError(f"a process that tokenises ended with exit code {code}")
            self.close()
            self._begin()
            for job in self._unanswered:
                print(job, file=self.jobs, flush=True)
        self._unanswered.popleft()
        answer = json.loads(line)
        if answer.get("error") == DiskFull.__name__:
            raise DiskFull(**answer["values"])
        if answer.get("error") == NotWritable.__name__:
            raise NotWritable(**answer["values"])
        with np.load(answer["result"], allow_pickle=False) as result:
            tokens, lengths = result["tokens"], result["lengths"]
        Path(answer["result"]).unlink()
        return tokens, lengths

    def close(self) -> None:
        """Ends the process by closing its input."""
        with contextlib.suppress(OSError):
            self.jobs.close()
        self.process.wait()
        self.answers.close()


def main() -> None:
    """Does jobs from standard input until it ends."""
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, signal.SIG_IGN)  # the parent handles them
    tokenizer = load_tokenizer(Path(sys.argv[1]))
    with Path(sys.argv[2]).open("rb") as stream:  # stays readable when the file is deleted
        for line in sys.stdin:
            job = json.loads(line)
            try:
                texts = TextPlaces(np.array(job["starts"]), np.array(job["sizes"])).read(stream)
                encoded = tokenizer.encode(list(texts))
                arrays = {
                    "lengths": np.array([len(tokens) for tokens in encoded], dtype=np.int64),
                    "tokens": np.concatenate([np.zeros(0, dtype=np.int32), *encoded]),
                }
                write_arrays(Path(job["result"]), arrays)
                answer = {"result": job["result"]}
            except (DiskFull, NotWritable) as error:  # the parent raises it
                values = {name: str(value) for name, value in error.values.items()}
                answer = {"error": type(error).__name__, "values": values}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
