"""Modules that step while a path is late, through tasks, ledger and store: bit for bit what
Algorithm 1 makes of the contributions that the ledger says each step took.
"""

import itertools
import random

import pytest

from dipaco.config import MODULAR
from dipaco.control.facts.quorums import TakenContribution
from dipaco.runs.reading.inspection import inspection_of
from dipaco.runs.reading.status import status_of
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers import replay
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import ContributionRefused
from dipaco.workers.execution import execute
from dipaco.workers.keeping import collect_after
from dipaco.workers.rollback import roll_back
from dipaco.workers.tasks import outer as executor
from tests.workers.conftest import (
    CONFIG,
    changed,
    do,
    finish,
    never,
    work_until,
    worker_of,
)
from tests.workers.test_recovery import put, with_leaf

PHASES = 3


def with_quorum(outer=(), **settings):
    """Half of a module's paths are enough, and a step waits no longer."""
    outer = {"quorum": 0.5, "grace_seconds": 0.0, **dict(outer)}
    return changed(CONFIG, outer=outer, **settings)


def work_with_late_paths(run, is_late):
    """To the end, by one worker: what `is_late` says of is held back until nothing else is left."""
    held, queue = [], run.ledger.queue
    while run.ledger.queue.unfinished():
        run.ledger.quorums.end_grace(run.plan)
        claim = queue.claim("test")
        if claim is not None and claim.task.kind == "train" and is_late(claim.task):
            held.append(claim)
            continue
        claim = claim or held.pop(0)
        do(run, claim)
        collect_after(run, claim, set())


def late_ones(run):
    late = run.ledger.quorums.late(MODULAR)
    return [each for of_step in late.values() for each in of_step]


def with_dice(task):
    return task.arm == MODULAR and random.Random(str(task)).random() < 0.4


def test_each_contribution_counts_once_and_those_that_no_step_needs_are_deleted(begin):
    """That the modules are those of Algorithm 1 is shown by `test_options_together.py`."""
    config = with_quorum(
        {"vocabulary_rows": "holders"},
        inner={"hold_out": 0.2},
        routing={"alternations": (1,)},
        retention={"snapshots": 1, "contributions": 1, "modules": 2},
    )
    run = begin(config)
    work_with_late_paths(run, with_dice)
    assert late_ones(run), "no path was late"
    assert all(each.step == each.phase + 1 < PHASES for each in late_ones(run))
    taken = run.ledger.quorums.taken(MODULAR)
    arm = run.plan.arm(MODULAR)
    for module in arm.topology.modules:
        counted = [
            (each.phase, each.path)
            for (of, _), of_step in taken.items()
            if of == module
            for each in of_step
        ]
        assert sorted(counted) == [
            (phase, path) for phase in range(PHASES) for path in arm.contributors(module, phase)
        ]
    assert run.ledger.redos.refusals() == []
    assert not list((run.layout.root / "objects/messages").rglob("*.safetensors"))
    assert_status_inspection_and_report_name_the_late_paths(run)


def assert_status_inspection_and_report_name_the_late_paths(run):
    status, late = status_of(run), late_ones(run)
    assert status["bits"].startswith("not promised")
    assert len(status["quorum"]["late"]) == len(late)
    newest = status["quorum"]["newest_steps"]["early/0000"]
    assert (newest["step"], newest["paths"]) == (PHASES - 1, [0, 1])
    inspected = inspection_of(run)["modules"]
    told = itertools.chain.from_iterable(
        step["took_late"] for module in inspected.values() for step in module["steps"]
    )
    assert sorted(told) == sorted(each.path for each in late)
    report = run.layout.report("md").read_text()
    assert f"{len(late)} of {4 * 2 * PHASES} were late" in report
    one = status["quorum"]["late"][0]
    assert f"{one['module']} step {one['step']}: path" in report
    assert "need not have these digests" in report


class Killed(BaseException):
    """As a process that is no more."""


def test_a_killed_step_takes_the_same_contributions_again_though_more_have_arrived(
    begin, monkeypatch
):
    run = begin(with_quorum())
    held, step = [], None
    while step is None:
        run.ledger.quorums.end_grace(run.plan)
        claim = run.ledger.queue.claim("test")
        if claim.task.kind == "train" and claim.task.path == 0:
            held.append(claim)
        elif claim.task.kind == "outer" and len(run.ledger.facts.contributions(*of(claim))) == 1:
            step = claim
        else:
            do(run, claim)

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(executor, "save_tree", killed)
        with pytest.raises(Killed):
            execute(run, step, Callbacks(), never)
    for claim in held:
        do(run, claim)
    assert len(run.ledger.facts.contributions(*of(step))) == 2
    run.ledger.queue.give_back(step)
    finish(run)
    taken = run.ledger.quorums.taken(MODULAR)
    (in_time,) = taken[step.task.module, 0]
    assert in_time.path != 0
    assert taken[step.task.module, 1][0] == TakenContribution(0, 0, 1)
    assert replay.differences(run) == []


def of(claim):
    return MODULAR, claim.task.module, claim.task.phase


def test_a_late_contribution_that_is_wrong_is_refused_and_made_again(begin):
    run = begin(with_quorum())
    finish_phase_without_path_0(run)
    late = [
        contribution
        for module in run.plan.arm(MODULAR).topology.modules_of(0)
        for contribution in run.ledger.facts.contributions(MODULAR, module, 0)
        if contribution.path == 0
    ]
    spoiled = with_leaf(put(float("nan")))(load_tree(run.objects, late[0].message))
    receipt = save_tree(run.objects, "messages/spoiled", spoiled)
    with run.ledger._database.transaction():
        run.ledger._database._connection.execute(
            "UPDATE contributions SET name = ?, digest = ?, num_bytes = ?"
            " WHERE module = ? AND phase = 0 AND path = 0",
            (*receipt, str(late[0].module)),
        )
    callbacks = finish(run)
    assert ContributionRefused.__name__ in [name for _, name in callbacks.redos]
    (refusal,) = run.ledger.redos.refusals()
    assert refusal.task == "train modular path 0 phase 0"
    assert replay.differences(run) == []


def finish_phase_without_path_0(run):
    """All modules step without path 0, which then comes."""
    held = None
    while len(run.ledger.facts.modules_at(MODULAR, 1)) < 4:
        run.ledger.quorums.end_grace(run.plan)
        claim = run.ledger.queue.claim("test")
        if claim.task.kind == "train" and claim.task.path == 0 and claim.task.arm == MODULAR:
            held = claim
        elif claim.task.phase == 1 and claim.task.kind == "train" and claim.task.arm == MODULAR:
            run.ledger.queue.give_back(claim)
        else:
            do(run, claim)
    assert held is not None
    do(run, held)


def test_a_rollback_to_a_phase_with_a_late_path_matches_the_replay(begin, monkeypatch):
    run = begin(with_quorum(retention={"snapshots": None, "contributions": None}))
    work_with_late_paths(run, with_dice)
    assert_replay_notices_another_order_and_another_step(run, monkeypatch)
    (first, *_) = late_ones(run)
    counts = roll_back(run, first.step)
    assert counts["taken"] >= 1
    assert all(each.step < first.step for each in late_ones(run))
    finish(run)
    assert first in late_ones(run)
    assert replay.differences(run) == []


def assert_replay_notices_another_order_and_another_step(run, monkeypatch):
    real = run.ledger.quorums.taken(MODULAR)
    (module, step), (late, *_) = next(iter(run.ledger.quorums.late(MODULAR).items()))
    forged = {key: list(value) for key, value in real.items()}
    forged[module, step].remove(late)
    forged[module, step - 1].append(late)
    with monkeypatch.context() as patch:
        patch.setattr(run.ledger.quorums, "taken", lambda arm: forged)
        assert f"{module} at phase {step}" in replay.differences(run)


def test_workers_end_the_grace_without_a_monitor(begin):
    run = begin(with_quorum())
    first = worker_of(run)
    work_until(run, 0, first)
    slow = next(
        claim
        for claim in iter(lambda: run.ledger.queue.claim("slow", ["train"]), None)
        if claim.task.arm == MODULAR
    )
    work_until(run, 1, first)
    assert slow.task.phase == 0
    do(run, slow)
    finish(run)
    assert (slow.task.path, 0) in {(each.path, each.phase) for each in late_ones(run)}
