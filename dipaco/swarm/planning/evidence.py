"""What shows that a peer has sent other values than it should have: kept in the run's ledger."""

from typing import NamedTuple

from dipaco.control.swarms import PROVED

SHOWN = 4  # values that are kept of each side


class Evidence(NamedTuple):
    """A lie that the leader has found itself; no peer's word is in it."""

    kind: str  # "sum" or "gradient"
    step: int
    round_number: int
    first: int  # values of the gradient, from and to, that were compared
    last: int
    problem: str  # a part of a sentence
    claimed: tuple[float, ...] = ()  # the first values that differ, as the peer gave them
    found: tuple[float, ...] = ()  # as they should be
    signed: str = (
        ""  # hexadecimal: the header of what the peer has signed, where a peer passed it on
    )

    @property
    def reason(self) -> str:
        """Why the session is refused."""
        return f"{PROVED} at step {self.step + 1}: {self.problem}"
