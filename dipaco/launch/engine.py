"""The contract of an engine: it starts worker groups, tells which have ended, and stops them.

A group is one worker to the run: one process, or one on each of several hosts that train a path
together. It lives and dies as a whole: where one of its processes dies, the others are ended. What
an engine adds is how a process is started and watched.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

LEAVING_SECONDS = 30.0  # between the first and the last process of a group that ends in order
LOOK_SECONDS = 0.05
KILLED = -9


class Command(Protocol):
    """What the processes of a group run."""

    def command(self, name: str, host: int = 0, coordinator: str | None = None) -> list[str]:
        """The command line of one host of the group called `name`; where there are several, they
        meet at the address `coordinator`.
        """
        ...

    @property
    def hosts(self) -> int:
        """Processes of a group."""
        ...

    @property
    def takes_devices(self) -> bool:
        """Whether it computes on accelerators, where there are some."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """Variables that it needs besides those of the machine where it runs."""
        ...


class Process(Protocol):
    """One process of a group, wherever it is."""

    def poll(self) -> int | None:
        """Its exit code, minus the signal's number where one killed it; None while it lives, or
        waits for a place to live.
        """
        ...

    def terminate(self) -> None:
        """Asks it to end in order."""
        ...

    def kill(self) -> None:
        """Ends it, wherever it is, and gives its place back."""
        ...

    def last_words(self) -> str:
        """The last line that it printed."""
        ...


class Ended(NamedTuple):
    """A group that is no more."""

    name: str
    code: int  # of the process that ended it; minus the signal's number where one killed it
    words: str = ""  # the last that this process printed

    @property
    def how(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


class Engine(ABC):
    """Where the worker groups of a run live."""

    def __init__(self):
        self._groups: dict[str, Sequence[Process]] = {}
        self._leaving_since: dict[str, float] = {}  # groups of which one has ended in order

    @abstractmethod
    def _begin(self, role: Command, name: str) -> Sequence[Process]:
        """Starts the processes of a group, the first host first."""

    def start(self, role: Command, name: str) -> None:
        """Starts a group. Where there is no room for it yet, it waits for a place."""
        assert name not in self._groups, name
        self._groups[name] = self._begin(role, name)

    def group(self, name: str) -> Sequence[Process]:
        """The processes of a group, the first host first."""
        return self._groups[name]

    def end(self, name: str) -> None:
        """Asks a group to end in order; `poll` tells when it has."""
        for process in self._groups.get(name, ()):
            process.terminate()

    def poll(self) -> list[Ended]:
        """The groups that have ended since the last time."""
        ended = [(name, self._end_of(name, group)) for name, group in self._groups.items()]
        for name, end in ended:
            if end is not None:
                del self._groups[name]
                self._leaving_since.pop(name, None)
        return [end for _, end in ended if end is not None]

    def stop(self, grace_seconds: float) -> list[Ended]:
        """Asks all to end in order, waits, and ends those that did not."""
        for name in self._groups:
            self.end(name)
        ended = self.poll()
        deadline = time.monotonic() + grace_seconds
        while self._groups and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            ended += self.poll()
        for name, group in self._groups.items():
            for process in group:
                process.kill()
            ended.append(Ended(name, KILLED, group[0].last_words()))
        self._groups.clear()
        return ended

    def _end_of(self, name: str, group: Sequence[Process]) -> Ended | None:
        codes = [(process, process.poll()) for process in group]
        failed = [(process, code) for process, code in codes if code]
        alive = [process for process, code in codes if code is None]
        if not failed and len(alive) == len(group):
            return None
        since = self._leaving_since.setdefault(name, time.monotonic())
        if alive and not failed and time.monotonic() - since < LEAVING_SECONDS:
            return None
        process, code = failed[0] if failed else (group[0], KILLED if alive else 0)
        words = process.last_words() if code else ""
        for each in group:
            each.kill()
        return Ended(name, code, words)
