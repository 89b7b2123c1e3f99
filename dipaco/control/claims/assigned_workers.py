"""Homes of paths: the worker whose machine has a path's modules, contributions and snapshot.

Machines that share nothing but a bucket fetch all that if a path goes on elsewhere. So a path's
next phase is left to the worker that trained its last one, while that is there and trains nothing
else; another takes it where the home is busy with another path, silent or gone (`next_task`,
`claim_task`), or may not train it: it does no training tasks any more, or is a swarm's backbone. A
backbone takes its path from any home. So may any worker if the task went wrong at home or was lost
there, lest it fail for good through the fault of one machine. A worker takes the paths that are at
home with it first. A lost row costs bytes, and no more.
"""

from collections.abc import Iterable

from dipaco.control.database.contract import Database
from dipaco.control.planning.tasks import Fact, PathTrained
from dipaco.schedule.plan import Plan


class Homes:
    """Of the paths of one run; there are none unless commits settle them."""

    def __init__(self, database: Database):
        self._database = database

    def home_of(self, arm: str, path: int) -> str | None:
        """The worker that trained the newest phase of a path; None: it was not settled."""
        row = self._database.one("get_meta", key=_key(arm, path))
        return None if row is None else row[0]


def trained_alone(plan: Plan, facts: Iterable[Fact]) -> list[tuple[str, int]]:
    """(arm, path) of the paths that the worker of these facts has trained by itself: it has what
    their next phase begins from.
    """
    return [
        (fact.arm, fact.path)
        for fact in facts
        if isinstance(fact, PathTrained) and not plan.arm(fact.arm).is_synchronous
    ]


def homes_of(plan: Plan, facts: Iterable[Fact], worker: str) -> dict[str, str]:
    """Key -> worker, as they are kept. They are recorded with the facts: if the worker is killed
    after that, no path is left to an older home.
    """
    return {_key(arm, path): worker for arm, path in trained_alone(plan, facts)}


def _key(arm: str, path: int) -> str:
    return f"home {arm}/{path}"
