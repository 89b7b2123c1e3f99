"""Workers as child processes on this machine, each with its own log in the run's folder."""

import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dipaco.launch.engine import Engine, ProcessCommand


class LocalProcess:
    """A child process."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]):
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the launcher, which stops them
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def last_line(self) -> str:
        return last_line(self._log) or f"none; see {self._log}"


class LocalEngine(Engine):
    """Holds child processes.

    Args:
      devices_of: slot -> environment variables that give a process its devices. Each process that
        computes takes the lowest free slot.
    """

    def __init__(
        self,
        log: Callable[[str], Path],
        devices_of: Callable[[int], Mapping[str, str]] = lambda slot: {},
    ):
        super().__init__()
        self._log, self._devices_of = log, devices_of
        self._slots_of: dict[str, list[int]] = {}

    def _begin(self, spec: ProcessCommand, name: str) -> list[LocalProcess]:
        coordinator = f"127.0.0.1:{free_port()}" if spec.hosts > 1 else None
        self._slots_of[name] = self._free_slots(spec.hosts) if spec.takes_devices else []
        devices = [self._devices_of(slot) for slot in self._slots_of[name]] or [{}] * spec.hosts
        return [
            LocalProcess(
                spec.command(name, host, coordinator),
                self._log(name if host == 0 else f"{name}-host{host}"),
                {**os.environ, **spec.environment, **devices[host]},
            )
            for host in range(spec.hosts)
        ]

    def _free_slots(self, count: int) -> list[int]:
        taken = {slot for other in self._workers for slot in self._slots_of[other]}
        free = (slot for slot in itertools.count() if slot not in taken)
        return list(itertools.islice(free, count))


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def last_line(log: Path) -> str:
    """The last line of a log, or empty."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
