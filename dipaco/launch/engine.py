"""The contract of an engine: it starts workers, reports which have ended, and stops them.

A worker is one process, or one on each of several hosts that train a path together. When one of its
processes dies, the others are ended. Each engine starts and watches processes in its own way.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

# longest time from the first to the last process of a worker that ends in order
LEAVING_SECONDS = 30.0
LOOK_SECONDS = 0.05
KILLED = -9
UNSEEN = -(1 << 16)  # exit code if nobody saw the process end: its machine may be gone


class ProcessCommand(Protocol):
    """The program that the processes of a worker run."""

    def command(self, name: str, host: int = 0, coordinator: str | None = None) -> list[str]:
        """The command line on one host of the worker `name`. Several hosts connect at the address
        `coordinator`.
        """
        ...

    @property
    def hosts(self) -> int:
        """Number of processes of a worker, one on each host."""
        ...

    @property
    def takes_devices(self) -> bool:
        """True if it computes on accelerators where there are any."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """Variables that it needs besides the machine's."""
        ...


class Process(Protocol):
    """One process of a worker, on this machine or another."""

    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that killed it, or `UNSEEN`. None while the
        process runs or waits for resources.
        """
        ...

    def terminate(self) -> None:
        """Asks the process to end in order."""
        ...

    def kill(self) -> None:
        """Ends the process at once, and frees its resources."""
        ...

    def last_line(self) -> str:
        """The last line of the process's output."""
        ...


class EndedWorker(NamedTuple):
    """A worker that has ended."""

    name: str
    code: int  # exit code of the process that ended it, or minus the number of its signal
    last_line: str = ""  # the last line of this process's output

    @property
    def how(self) -> str:
        if self.code == UNSEEN:
            return "with its machine"
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


class Engine(ABC):
    """Base class of the engines, which hold the workers of a run."""

    def __init__(self):
        self._workers: dict[str, Sequence[Process]] = {}
        self._leaving_since: dict[str, float] = {}  # when a first process was seen to have ended

    @abstractmethod
    def _begin(self, spec: ProcessCommand, name: str) -> Sequence[Process]:
        """Starts the processes of a worker, the first host first."""

    def start(self, spec: ProcessCommand, name: str) -> None:
        """Starts a worker. The worker waits while there are no free resources."""
        assert name not in self._workers, name
        self._workers[name] = self._begin(spec, name)

    def processes(self, name: str) -> Sequence[Process]:
        """The processes of a worker, the first host first."""
        return self._workers[name]

    def end(self, name: str) -> None:
        """Asks a worker to end in order. `poll` reports its end."""
        for process in self._workers.get(name, ()):
            process.terminate()

    def kill(self, name: str) -> None:
        """Ends a worker at once. `poll` reports its end."""
        for process in self._workers.get(name, ()):
            process.kill()

    def poll(self) -> list[EndedWorker]:
        """The workers that have ended since the last call."""
        ended = [(name, self._end_of(name, worker)) for name, worker in self._workers.items()]
        for name, end in ended:
            if end is not None:
                del self._workers[name]
                self._leaving_since.pop(name, None)
        return [end for _, end in ended if end is not None]

    def stop(self, grace_seconds: float) -> list[EndedWorker]:
        """Asks all workers to end in order, waits, and ends the remaining ones."""
        for name in self._workers:
            self.end(name)
        ended = self.poll()
        deadline = time.monotonic() + grace_seconds
        while self._workers and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            ended += self.poll()
        for name, worker in self._workers.items():
            for process in worker:
                process.kill()
            ended.append(EndedWorker(name, KILLED, worker[0].last_line()))
        self._workers.clear()
        return ended

    def _end_of(self, name: str, worker: Sequence[Process]) -> EndedWorker | None:
        codes = [(process, process.poll()) for process in worker]
        failed = [(process, code) for process, code in codes if code]
        alive = [process for process, code in codes if code is None]
        if not failed and len(alive) == len(worker):
            return None
        since = self._leaving_since.setdefault(name, time.monotonic())
        if alive and not failed and time.monotonic() - since < LEAVING_SECONDS:
            return None
        process, code = failed[0] if failed else (worker[0], KILLED if alive else 0)
        last_line = process.last_line() if code else ""
        for each in worker:
            each.kill()
        return EndedWorker(name, code, last_line)
