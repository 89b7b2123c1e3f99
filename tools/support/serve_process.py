"""`dipaco serve` as a process of its own."""

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Generator[tuple[str, int]]:
    """The address of a server of a run, when it is ready; with further options of `serve`."""
    command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", folder, "--port", "0"]
    command += options
    process = subprocess.Popen(
        [str(word) for word in command], stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stderr
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            if line.startswith("serving "):
                host, _, port = line.rpartition("http://")[2].strip().rpartition(":")
                yield host, int(port)
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.communicate(timeout=60)
