"""The contract of an engine: it starts processes, tells which have ended, and stops them."""

from typing import NamedTuple, Protocol

from dipaco.launch.roles import Role


class Ended(NamedTuple):
    """A process that is no more."""

    name: str
    code: int  # exit code; minus the signal's number where one killed it

    @property
    def how(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


class Engine(Protocol):
    """Where processes of a run live."""

    def start(self, role: Role, name: str) -> int:
        """Starts a process; its number, as the engine counts them."""
        ...

    def poll(self) -> list[Ended]:
        """Those that have ended since the last time."""
        ...

    def stop(self, grace_seconds: float) -> list[Ended]:
        """Asks all to end in order, waits, and ends those that did not."""
        ...
