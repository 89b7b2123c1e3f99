"""Processes of this machine, each with a log of its own in the run's folder."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from dipaco.launch.engine import Ended
from dipaco.launch.roles import Role


class LocalEngine:
    """Keeps child processes.

    Args:
      log: of a process, by its name; appended to.
    """

    def __init__(self, log: Callable[[str], Path]):
        self._log = log
        self._processes: dict[str, subprocess.Popen] = {}

    def start(self, role: Role, name: str) -> int:
        file = self._log(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as log:
            process = subprocess.Popen(
                role.command(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the launcher, which stops them in order
            )
        self._processes[name] = process
        return process.pid

    def poll(self) -> list[Ended]:
        ended = [
            Ended(name, process.returncode)
            for name, process in self._processes.items()
            if process.poll() is not None
        ]
        for name, _ in ended:
            del self._processes[name]
        return ended

    def stop(self, grace_seconds: float) -> list[Ended]:
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + grace_seconds
        for process in self._processes.values():
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return self.poll()
