"""`dipaco serve` as a separate process."""

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple


class Serving(NamedTuple):
    """A server that is ready."""

    process: subprocess.Popen
    host: str
    port: int


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Generator[Serving]:
    """Serves a run, with further options of `serve`, and ends the server by SIGTERM."""
    command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", str(folder)]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stderr
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            if line.startswith("serving "):
                host, _, port = line.rpartition("http://")[2].strip().rpartition(":")
                yield Serving(process, host, int(port))
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        print(process.communicate(timeout=120)[1], end="", file=sys.stderr)
