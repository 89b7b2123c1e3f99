"""Text chunks -> tokens, by several processes, in the order of the chunks.

`python -m dipaco.data.encode TOKENIZER` is one of them: it reads a job a line and prints an answer
a line. Plain subprocesses rather than `multiprocessing`: they do not import the caller's main
module, share no memory with a process that may hold JAX's threads, and end when their parent is
gone, even killed, because their input ends. Chunk i goes to process i modulo n, so the answers are
in order. SIGTERM to all processes of a service is for the parent, which ends them: they ignore it,
and one that it reached before it could is started again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

import numpy as np

import dipaco
from dipaco.data.text_chunks import chunk_file, read_chunk
from dipaco.data.tokenizer import Tokenizer, load_tokenizer
from dipaco.errors import DiskFull, NotWritable
from dipaco.files import write_arrays

JOBS_AHEAD = 2  # per process: it never waits for its next job, and few results wait on disk


class TextChunks(Protocol):
    """A folder of them (`text_chunks.py`), with room for their tokens beside them."""

    @property
    def folder(self) -> Path: ...

    def kept_in(self, chunk: int) -> np.ndarray:
        """[documents of the chunk] bool: those to encode."""
        ...


def encode_chunks(
    staged: TextChunks, chunks: range, tokenizer: Tokenizer, processes: int
) -> Generator[list[np.ndarray], None, None]:
    """Yields for each chunk the tokens of its kept documents; a few chunks are in memory."""
    # Starting a process takes as long as encoding two chunks.
    if processes == 1 or len(chunks) <= 2:
        for chunk in chunks:
            texts = read_chunk(chunk_file(staged.folder, chunk))
            yield tokenizer.encode([texts[i] for i in np.flatnonzero(staged.kept_in(chunk))])
        return

    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(_Worker(tokenizer.file)))
            for _ in range(min(processes, len(chunks)))
        ]
        ahead = JOBS_AHEAD * len(workers)
        for place, chunk in enumerate(chunks[:ahead]):
            workers[place % len(workers)].send(staged, chunk)
        for place, chunk in enumerate(chunks):
            worker = workers[place % len(workers)]
            tokens, lengths = worker.receive()
            if chunk + ahead in chunks:
                worker.send(staged, chunk + ahead)
            yield np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []


class _Worker:
    """A process that tokenises, on the side of its parent."""

    def __init__(self, tokenizer_file: Path):
        self._tokenizer_file = tokenizer_file
        self._unanswered: deque[str] = deque()  # jobs, the oldest first
        self._begin()

    def _begin(self) -> None:
        home = str(Path(dipaco.__file__).parents[1])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dipaco.data.encode", str(self._tokenizer_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # One thread each: the processes are what fills the CPUs.
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self.process.stdin
        assert self.process.stdout
        self.jobs, self.answers = self.process.stdin, self.process.stdout

    def send(self, staged: TextChunks, chunk: int) -> None:
        job = {
            "texts": str(chunk_file(staged.folder, chunk)),
            "kept": np.flatnonzero(staged.kept_in(chunk)).tolist(),
            "result": str(staged.folder / f"tokens_{chunk:06d}.npz"),
        }
        self._unanswered.append(json.dumps(job))
        with contextlib.suppress(BrokenPipeError):  # `receive` says why it has ended
            print(self._unanswered[-1], file=self.jobs, flush=True)

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a chunk in one array, and how many each document has."""
        while not (line := self.answers.readline()):
            code = self.process.wait()
            if code != -signal.SIGTERM:
                raise ChildProcessError(f"a process that tokenises ended with exit code {code}")
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
    for line in sys.stdin:
        job = json.loads(line)
        try:
            texts = read_chunk(Path(job["texts"]))
            encoded = tokenizer.encode([texts[i] for i in job["kept"]])
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
