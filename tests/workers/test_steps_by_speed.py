"""Paths on slow machines take fewer inner steps: bit for bit what Algorithm 1 makes of the numbers
that the ledger says were decided, each once.
"""

import dataclasses

import pytest
import replay

from dipaco.config import MODULAR
from dipaco.control.tasks import PathTrained
from dipaco.inner.config import InnerSettings
from dipaco.runs.progress import progress_of
from dipaco.runs.report import make_report
from dipaco.runs.status import status_of
from dipaco.topology import Topology
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.execution import execute
from dipaco.workers.preemption import Preempted
from tests.workers.conftest import CONFIG, SHARINGS, never

PHASES, STEPS = 3, 8


def by_speed(sharing="2x2", *, alternations=(), rewarm=0, **outer):
    """Slow machines take a quarter of the steps at least."""
    inner = dataclasses.replace(
        CONFIG.inner, steps=STEPS, least_steps_share=0.25, rewarm_steps=rewarm
    )
    return dataclasses.replace(
        CONFIG,
        topology=Topology(levels=SHARINGS[sharing]),
        phases=PHASES,
        inner=inner,
        routing=dataclasses.replace(CONFIG.routing, alternations=alternations),
        outer=dataclasses.replace(CONFIG.outer, **outer),
        baselines=(),
    )


def seconds_of(worker, steps):
    """Of the modular model's phases: one worker has 55 % of the other's speed."""
    return steps / (0.55 if worker == "slow" else 1.0)


def work(run, *, until=lambda claim: False, hold=lambda claim: False):
    """Two workers in turn, to the end or to a claim of the modular model that `until` names."""
    held, turn, queue = [], 0, run.ledger.queue
    while run.ledger.queue.unfinished():
        run.ledger.quorums.end_grace(run.plan)
        turn += 1
        claim = queue.claim("slow" if turn % 2 else "fast")
        is_of_path = claim is not None and claim.task.kind == "train"
        if is_of_path and until(claim):
            return claim
        if is_of_path and hold(claim):
            held.append(claim)
            continue
        finish(run, claim or held.pop(0))
    return None


def finish(run, claim):
    facts = [
        dataclasses.replace(fact, seconds=seconds_of(claim.worker, fact.tokens))
        if isinstance(fact, PathTrained)
        else fact
        for fact in execute(run, claim, NullCallbacks(), never)
    ]
    run.ledger.commit.finish(run.plan, claim, facts)


def test_the_speed_of_a_phase_is_that_of_the_worker_whose_work_counts(begin):
    """A backup that begins later and loses has taken no time that anybody measured."""
    run = begin(by_speed())
    claim = work(run, until=lambda claim: True)
    run.ledger.phase_steps.decide(claim, run.plan.arm(MODULAR))
    of = {"arm": MODULAR, "path": claim.task.path, "phase": claim.task.phase}
    run.ledger._database.change("hand_phase_steps", **of, worker="backup")
    finish(run, claim)
    (decided,) = run.ledger.phase_steps.newest(MODULAR)
    assert decided.worker == claim.worker


@pytest.mark.parametrize(
    "settings",
    [
        {"vocabulary_rows": "holders", "codec": "int8"},
        pytest.param(
            {
                "vocabulary_rows": "holders",
                "delay": 1,
                "delay_merge": 0.0,
                "codec": "sparse2",
                "momentum": 0.0,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param({"alternations": (1,), "rewarm": 2}, marks=pytest.mark.slow),
        pytest.param({"path_share": 0.75, "vocabulary_rows": "holders"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_is_algorithm_1_with_the_steps_that_each_path_took(begin, settings, monkeypatch):
    run = begin(by_speed(**settings))
    work(run)
    decided = run.ledger.phase_steps.all(MODULAR)
    arm = run.plan.arm(MODULAR)
    assert set(decided) == {(path, p) for p in range(PHASES) for path in arm.paths_in(p)}
    if arm.sampling == 1:
        assert {steps for (_, phase), steps in decided.items() if phase == 0} == {STEPS}
        assert {steps for (_, phase), steps in decided.items() if phase} == {4, STEPS}
    else:  # a worker that has trained one of an odd number of paths may take fewer at once
        assert set(decided.values()) == {4, STEPS}
    losses = run.ledger.progress.losses(MODULAR)
    for path in losses:
        assert len(losses[path]) == sum(n for (of, _), n in decided.items() if of == path)
    done, total = progress_of(run)
    assert done == total
    (modular,) = (row for row in make_report(run).rows if row.name == MODULAR)
    steps_of_machine = sum(decided.values()) / arm.num_at_once
    assert modular.steps == run.plan.base.total_steps + round(steps_of_machine)
    assert replay.differences(run) == []
    row = next(each for each in status_of(run)["steps_by_speed"] if each["steps"] == 4)
    assert (row["out_of"], row["worker"]) == (STEPS, "slow")
    assert row["share"] == pytest.approx(0.55)
    forged = {**decided, (row["path"], row["phase"]): STEPS}
    monkeypatch.setattr(run.ledger.phase_steps, "all", lambda arm: forged)
    assert replay.differences(run)


def test_with_a_quorum_a_path_that_has_not_begun_weighs_as_one_that_takes_all_steps(begin):
    """The step that does not wait for it needs its weight among the others."""
    run = begin(by_speed(quorum=0.5, grace_seconds=0.0))
    work(run, hold=lambda claim: (claim.task.path, claim.task.phase) == (0, 1))
    late = [each for of_step in run.ledger.quorums.late(MODULAR).values() for each in of_step]
    assert (0, 1) in {(each.path, each.phase) for each in late}
    assert run.ledger.phase_steps.all(MODULAR)[0, 1] == STEPS
    assert replay.differences(run) == []


def test_a_phase_that_another_worker_ends_takes_the_steps_that_were_decided(begin):
    run = begin(by_speed())
    claim = work(run, until=lambda claim: claim.task.phase == 1 and claim.worker == "slow")
    looks = iter([False, False, True])
    with pytest.raises(Preempted) as stopped:
        execute(run, claim, NullCallbacks(), lambda: next(looks))
    (partial_snapshot,) = stopped.value.partial_snapshots
    run.ledger.commit.release_with_snapshot(claim, partial_snapshot)
    again = run.ledger.queue.claim("fast", ["train"])
    assert again.task == claim.task
    finish(run, again)
    of = (claim.task.path, claim.task.phase)
    assert run.ledger.phase_steps.all(MODULAR)[of] == 4
    newest = {each.path: each for each in run.ledger.phase_steps.newest(MODULAR)}
    assert newest[claim.task.path].worker == "fast"
    work(run)
    assert replay.differences(run) == []


def test_all_paths_begin_a_phase_at_the_same_rate(begin):
    run = begin(by_speed())
    work(run)
    arm = run.plan.arm(MODULAR)
    for phase in range(PHASES):
        steps = {run.ledger.facts.snapshot(MODULAR, path, phase).step for path in range(4)}
        assert steps == {arm.steps_before(phase + 1)}


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(Exception, match="at most 1"):
        InnerSettings(least_steps_share=share)


def test_paths_that_train_in_one_program_or_step_together_are_refused():
    with pytest.raises(Exception, match="take the same steps"):
        InnerSettings(least_steps_share=0.5, stacked_paths=2)
    with pytest.raises(Exception, match="step together do without it"):
        by_speed(synchronous=True)
