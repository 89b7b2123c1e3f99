"""Which way a module comes to a machine in the fewest bytes. Pure.

After its outer step a module is there whole; but it is also the module before the step, the outer
state before it, and the contributions that the step took. A machine that has the first two, and
its own contribution, computes the step from the messages of the other paths: with a codec of 8 bits
and a fan-in of 2, a quarter of the bytes. What it computes is the next outer state as well, so that
it goes on like that from phase to phase.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from dipaco.control.tasks import Contribution
from dipaco.receipt import Receipt

WORTH = 0.9  # of the bytes of the whole; a step costs a pass over the module for each contribution


class Version(NamedTuple):
    """A module at the start of a phase, and what its outer step at the end of it took."""

    phase: int
    parameters: Receipt
    outer_state: Receipt | None  # None: it has not stepped
    contributions: tuple[Contribution, ...]


class Holdings(Protocol):
    """What a machine has already."""

    def has_module(self, version: Version) -> bool: ...

    def has_outer_state(self, version: Version) -> bool: ...

    def has_message(self, contribution: Contribution) -> bool: ...


class FetchPlan(NamedTuple):
    """How a module is fetched."""

    start: int | None  # the phase whose module the steps begin from; None = whole
    num_bytes: int


def cheapest(
    whole: int, versions: Iterable[Version], holdings: Holdings, remaining: int
) -> FetchPlan:
    """The way of the fewest bytes.

    Args:
      whole: bytes of the module after its step.
      versions: of the module before, the newest first, as far back as their messages are there.
      holdings: of the machine that fetches.
      remaining: how often it fetches the module from now on. An outer state that it lacks is
        fetched if that pays until the end: once it is there, steps need messages alone.
    """
    messages = 0
    for version in versions:
        messages += sum(
            contribution.message.num_bytes
            for contribution in version.contributions
            if not holdings.has_message(contribution)
        )
        if messages >= WORTH * whole:
            break
        if not holdings.has_module(version):
            continue
        state = version.outer_state
        lacking = 0 if state is None or holdings.has_outer_state(version) else state.num_bytes
        if lacking + remaining * messages < WORTH * remaining * whole:
            return FetchPlan(version.phase, messages + lacking)
    return FetchPlan(None, whole)
