"""Processes of this machine, each with a log of its own in the run's folder."""

import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dipaco.launch.engine import Command, Engine


class LocalProcess:
    """A child process.

    Args:
      command: its command line.
      log: what it prints is appended there.
      environment: all of it.
    """

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
                start_new_session=True,  # Ctrl-C is for the launcher, which stops them in order
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        return last_line(self._log) or f"none; see {self._log}"


class LocalEngine(Engine):
    """Keeps child processes.

    Args:
      log: of a process, by its name.
      devices_of: what a process must find in its environment so that it takes the devices that are
        its own; by the number of its place, of which the lowest that are free are taken.
    """

    def __init__(
        self,
        log: Callable[[str], Path],
        devices_of: Callable[[int], Mapping[str, str]] = lambda place: {},
    ):
        super().__init__()
        self._log, self._devices_of = log, devices_of
        self._places_of: dict[str, list[int]] = {}

    def _begin(self, role: Command, name: str) -> list[LocalProcess]:
        coordinator = f"127.0.0.1:{free_port()}" if role.hosts > 1 else None
        self._places_of[name] = self._free_places(role.hosts) if role.takes_devices else []
        devices = [self._devices_of(place) for place in self._places_of[name]] or [{}] * role.hosts
        return [
            LocalProcess(
                role.command(name, host, coordinator),
                self._log(name if host == 0 else f"{name}-host{host}"),
                {**os.environ, **role.environment, **devices[host]},
            )
            for host in range(role.hosts)
        ]

    def _free_places(self, count: int) -> list[int]:
        taken = {place for other in self._groups for place in self._places_of[other]}
        free = (place for place in itertools.count() if place not in taken)
        return list(itertools.islice(free, count))


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def last_line(log: Path) -> str:
    """The last line of a log; empty where there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
