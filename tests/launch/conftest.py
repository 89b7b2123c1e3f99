"""Engines to be tested: processes of this machine, and a Ray cluster of three nodes."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NODES = Path(__file__).parents[1] / "support" / "nodes.py"


class Nodes:
    """A cluster of three nodes on this machine: a head, and two with two CPUs each."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(NODES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        self._ask, self._answers = self._process.stdin, self._process.stdout
        self.address = self._answers.readline().strip()
        assert self.address, "there is no cluster"

    def tell(self, *words: object) -> None:
        print(*words, file=self._ask, flush=True)
        assert self._answers.readline() == "done\n"

    def shutdown(self) -> None:
        self._ask.close()
        self._process.wait(timeout=60)
        self._answers.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Nodes()
        yield nodes
        nodes.shutdown()


def is_alive(pid: int) -> bool:
    """Whether a process is running: it exists, and is no zombie."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False
