"""Evidence that a peer has sent wrong values. It is kept in the run's ledger."""

from typing import NamedTuple

from dipaco.control.members.swarms import PROVED

SHOWN = 4  # values kept from each side


class Evidence(NamedTuple):
    """A lie that the leader has found itself, without the word of any peer."""

    kind: str  # "sum" or "gradient"
    step: int
    round_number: int
    first: int  # the compared values of the gradient are those from `first` to `last`
    last: int
    problem: str  # part of a sentence
    claimed: tuple[float, ...] = ()  # the first values that differ, as the peer gave them
    found: tuple[float, ...] = ()  # the same values as they should be

    @property
    def reason(self) -> str:
        """The reason that the refused session is given."""
        return f"{PROVED} at step {self.step + 1}: {self.problem}"
