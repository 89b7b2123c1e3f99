"""A task done again on a machine that computes otherwise: what nobody has used is replaced, what
was used stays; and how often a task is done again. On both databases.
"""

import dataclasses
from collections import Counter

import pytest
from support.made_up_facts import facts_of, receipt

from dipaco.control.errors import NotReproduced, RecoveryFailed
from dipaco.control.facts.redos import MOST_REDOS
from dipaco.control.planning.tasks import Contribution, PathTrained, Task
from tests.control.conftest import do, do_all, do_until, do_until_a_second_phase


def otherwise(plan, task):
    """The facts of a training task, with other bytes."""
    changed = []
    for number, fact in enumerate(facts_of(plan, task)):
        other = receipt("other", *task, number)
        name = "snapshot" if isinstance(fact, PathTrained) else "message"
        changed.append(dataclasses.replace(fact, **{name: other}))
    return changed


def redo_otherwise(ledger, plan, step, path):
    """An outer step finds that a contribution is damaged; its path is trained again."""
    cause = Task("train", "modular", str(path), step.task.phase)
    ledger.redos.redo(step, cause, "objects/one", "damaged")
    again = do_until(ledger, plan, cause, "other machine", ["train"])
    facts = otherwise(plan, cause)
    ledger.commit.finish(plan, again, facts)
    return facts


def cause_of(plan, step):
    """The training of one of the paths whose contributions a step takes."""
    path = plan.arm("modular").topology.paths_through(step.task.module)[0]
    return Task("train", "modular", str(path), step.task.phase)


def contribution_of(ledger, fact):
    found = ledger.facts.contributions("modular", fact.module, fact.phase)
    return {each.path: each for each in found}.get(fact.path)


def to_module(facts, module):
    return next(f for f in facts if isinstance(f, Contribution) and f.module == module)


def finish(ledger, plan):
    do_all(ledger, plan)
    assert ledger.queue.is_finished()


def test_before_the_module_has_stepped_the_new_contribution_is_taken(ledger, plan):
    step = do_until(ledger, plan, "outer")
    path = cause_of(plan, step).path
    facts = redo_otherwise(ledger, plan, step, path)
    assert contribution_of(ledger, to_module(facts, step.task.module)) == to_module(
        facts, step.task.module
    )
    snapshot = ledger.facts.snapshot("modular", path, 0).receipt
    assert snapshot == next(f.snapshot for f in facts if isinstance(f, PathTrained))
    finish(ledger, plan)


def test_what_another_module_has_stepped_with_stays(ledger, plan):
    topology = plan.arm("modular").topology
    first = do_until(ledger, plan, "outer")
    do(ledger, plan, first)
    step = do_until(ledger, plan, "outer")
    both = set(topology.paths_through(first.task.module))
    (path,) = both & set(topology.paths_through(step.task.module))
    facts = redo_otherwise(ledger, plan, step, path)
    used, unused = to_module(facts, first.task.module), to_module(facts, step.task.module)
    assert contribution_of(ledger, used) != used
    assert contribution_of(ledger, unused) == unused
    finish(ledger, plan)


def test_what_a_module_is_stepping_with_stays(ledger, plan):
    topology = plan.arm("modular").topology
    step = do_until(ledger, plan, "outer")
    other = None
    while other is None:
        do_train = ledger.queue.claim("w", ["train"])
        do(ledger, plan, do_train)
        other = ledger.queue.claim("stepping", ["outer"])
    shared = set(topology.paths_through(other.task.module))
    (path,) = shared & set(topology.paths_through(step.task.module))
    facts = redo_otherwise(ledger, plan, step, path)
    being_used = to_module(facts, other.task.module)
    assert contribution_of(ledger, being_used) != being_used
    do(ledger, plan, other)
    finish(ledger, plan)


def test_for_a_module_that_is_made_again_only_the_same_bytes_do(ledger, plan):
    """Its paths have trained with it: another one in its place would be another run."""
    claim = do_until_a_second_phase(ledger, plan)
    module = plan.arm("modular").topology.modules_of(claim.task.path)[0]
    ledger.redos.redo(claim, Task("outer", "modular", str(module), 0), "objects/lost", "missing")
    step = do_until(ledger, plan, "outer")
    with pytest.raises(NotReproduced):
        redo_otherwise(ledger, plan, step, cause_of(plan, step).path)


def test_a_snapshot_that_the_next_phase_began_with_stays(ledger, plan):
    claim = do_until_a_second_phase(ledger, plan)
    path = claim.task.path
    do(ledger, plan, claim)
    before = ledger.facts.snapshot("modular", path, 0)
    waiting = do_until(ledger, plan, "train")  # any task: it says that this snapshot is damaged
    redo_otherwise(ledger, plan, waiting._replace(task=waiting.task._replace(phase=0)), path)
    assert ledger.facts.snapshot("modular", path, 0) == before


def test_a_task_is_done_again_so_often_for_one_that_is_not_done(ledger, plan):
    for times in range(MOST_REDOS + 1):
        step = do_until(ledger, plan, "outer")
        cause = cause_of(plan, step)
        if times < MOST_REDOS:
            ledger.redos.redo(step, cause, "objects/one", "damaged")
    with pytest.raises(RecoveryFailed, match="done again 3 times"):
        ledger.redos.redo(step, cause, "objects/one", "damaged")
    assert ledger.queue.is_held(step)


def test_once_that_one_is_done_it_counts_anew(ledger, plan):
    """A run of months meets more than three flipped bytes."""
    damaged = Counter()
    while (claim := ledger.queue.claim("w")) is not None:
        if claim.task.kind == "outer" and damaged[claim.task] < MOST_REDOS:
            damaged[claim.task] += 1
            ledger.redos.redo(claim, cause_of(plan, claim), "objects/one", "damaged")
            continue
        do(ledger, plan, claim)
    assert ledger.queue.is_finished()
    assert ledger.redos.num_refusals() == MOST_REDOS * 8


def test_it_also_counts_anew_when_that_one_is_done_again(ledger, plan):
    step = do_until(ledger, plan, "outer")
    cause = cause_of(plan, step)
    for _ in range(MOST_REDOS):
        ledger.redos.redo(step, cause, "objects/one", "damaged")
        again = do_until(ledger, plan, "outer")
        assert again.task == step.task
        step = again
    do(ledger, plan, step)
    claim = do_until_a_second_phase(ledger, plan)
    ledger.redos.redo(claim, step.task, "objects/module", "missing")
    again = do_until(ledger, plan, "outer")
    assert again.task == step.task
    ledger.redos.redo(again, cause, "objects/one", "damaged")


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_a_task_is_not_woken_before_all_that_it_waits_for_has_ended(
    ledger, plan, fails, monkeypatch
):
    """Held while its path is trained again on a machine of another kind, a phase would keep the
    recorded snapshot, which is lost; and so for good.
    """
    step = do_until(ledger, plan, "outer")
    cause = cause_of(plan, step)
    ledger.redos.redo(step, cause, "objects/one", "damaged")
    slow = do_until(ledger, plan, cause, "slow", ["train"])

    def waiting() -> set[Task]:
        return {each.task for each in ledger.queue.unfinished() if each.state == "waiting"}

    other = do_until(ledger, plan, "outer")
    ledger.redos.redo(other, cause, "objects/one", "damaged")  # it is being done again already
    with ledger._database.transaction():
        ledger._database.change("wake_tasks")  # as when another task has been done again
    assert waiting() == {step.task, other.task}
    if fails:  # Its objects may be there now, though its facts are of other bytes.
        # The worker is killed after its first transaction.
        transactions = iter([ledger._database.transaction])
        monkeypatch.setattr(ledger._database, "transaction", lambda: next(transactions)())
        ledger.failures.fail(slow, "not reproduced")
        assert waiting() == set()
        return
    do(ledger, plan, slow)
    assert waiting() == set()
    finish(ledger, plan)
