"""`dipaco serve` as a separate process."""

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

COMPILED = "compiled for requests of any length"


class Serving(NamedTuple):
    """A server that listens."""

    process: subprocess.Popen
    host: str
    port: int

    def wait_until_compiled(self) -> None:
        """Returns when it has compiled everything."""
        assert self.process.stderr
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)
            if COMPILED in line:
                return
        raise SystemExit("the server ended")


@contextlib.contextmanager
def serving(folder: Path, *options: str, is_compiled: bool = True) -> Generator[Serving]:
    """Serves a run, with further options of `serve`, and ends the server by SIGTERM.

    Args:
      is_compiled: no request will wait for a compiler.
    """
    command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", str(folder)]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stderr
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            is_compiled = is_compiled and COMPILED not in line  # a router has, before it listens
            if line.startswith("serving "):
                host, _, port = line.rpartition("http://")[2].strip().rpartition(":")
                server = Serving(process, host, int(port))
                if is_compiled:
                    server.wait_until_compiled()
                yield server
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        print(process.communicate(timeout=120)[1], end="", file=sys.stderr)
