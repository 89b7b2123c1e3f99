"""The assigned worker of a path: its machine has the path's modules, contributions and snapshot.

Machines that share nothing but a bucket fetch all of these if a path continues elsewhere. So a
path's next phase is left to the worker that trained its last one, while that worker is present and
trains no other path. Another worker takes the path if the assigned one is busy, silent or gone
(`next_task`, `claim_task`), or may not train it: it does no training tasks any more, or is a
swarm's backbone. A backbone takes its path from any worker. So may any worker if the task went
wrong at the assigned worker or was lost there: one faulty machine must not make a task fail for
good. A worker claims the paths that are assigned to it first. A lost row costs bytes only.
"""

from collections.abc import Iterable

from dipaco.control.planning.tasks import Fact, PathTrained
from dipaco.schedule.plan import Plan


def trained_alone(plan: Plan, facts: Iterable[Fact]) -> list[tuple[str, int]]:
    """(arm, path) of the paths that the worker of these facts has trained by itself: it has what
    their next phase begins from.
    """
    return [
        (fact.arm, fact.path)
        for fact in facts
        if isinstance(fact, PathTrained) and not plan.arm(fact.arm).is_synchronous
    ]


def assignments_of(plan: Plan, facts: Iterable[Fact], worker: str) -> dict[str, str]:
    """Key -> worker, as the ledger keeps them. They are recorded with the facts: if the worker is
    killed after that, no path is left to the worker before it.
    """
    return {f"assigned {arm}/{path}": worker for arm, path in trained_alone(plan, facts)}
