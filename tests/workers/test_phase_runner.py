"""Phases of phase runners: one that is stopped before its end, and the memory of one."""

import weakref

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.control.members.swarms import GroupStep
from dipaco.errors import WorkersActive
from dipaco.inner.phase import PhaseResult
from dipaco.runs.reading.progress import progress_of
from dipaco.workers import phase_start, runners
from dipaco.workers.errors import CannotUndo
from dipaco.workers.rollback import undo_steps
from dipaco.workers.runners import Volunteers
from tests.support.members import join
from tests.workers.conftest import (
    CONFIG,
    changed,
    work_until,
    work_until_claimed,
    work_while,
    worker_of,
)


def test_the_next_worker_goes_on_from_the_snapshot_of_a_stopped_phase_runner(begin):
    run, begun = begin(CONFIG, until=0), []

    def one_step(work):
        begun.append((work.origin, work.losses))
        state = work.state.take()
        state = state._replace(step=state.step + 1)
        work.save(state, (*work.losses, 5.0))  # as a backbone does, now and then
        return PhaseResult(state, np.float32([*work.losses, 5.0]), 4)

    worker = worker_of(run, "others", kinds=("train",), runner=Volunteers(run, one_step))
    assert worker.run_once()
    (path,) = (p for p in range(4) if run.ledger.facts.partial_snapshot(MODULAR, p, 0) is not None)
    partial_snapshot = run.ledger.facts.partial_snapshot(MODULAR, path, 0)
    assert (partial_snapshot.step, partial_snapshot.losses) == (1, (5.0,))
    assert (run.address.folder / partial_snapshot.receipt.name).exists()
    done, total = progress_of(run)
    assert progress_of(run, with_partial_snapshots=True) == (done + 1, total)

    # It may take another path first.
    work_while(lambda: (begun[0][0], (5.0,)) not in begun, worker)
    assert run.ledger.facts.partial_snapshot(MODULAR, path, 0) is None


def test_a_path_that_trains_is_on_the_device_once_and_nothing_else_is(begin, monkeypatch):
    """Its parameters and AdamW's state. Neither the base model that routed documents, nor what the
    phase began with, whose memory a donated state could not reuse.
    """
    run = begin(CONFIG, until=0)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.programs.initial_parts()))
    loaded, on_device, on_host = [], [], []
    load, run_phase = phase_start.load_snapshot, runners.run_phase

    def loading(*arguments):
        state = load(*arguments)
        loaded.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(state))
        return state

    def running(state, batches, rates, step, **settings):
        def measured(*arguments):
            result = step(*arguments)
            on_device.append(sum(array.nbytes for array in jax.live_arrays()))
            on_host.append(sum(leaf() is not None for leaf in loaded))
            return result

        return run_phase(state, batches, rates, measured, **settings)

    monkeypatch.setattr(phase_start, "load_snapshot", loading)
    monkeypatch.setattr(runners, "run_phase", running)
    before = sum(array.nbytes for array in jax.live_arrays())
    work_until(run, 3)
    assert loaded
    assert not any(on_host)
    assert max(on_device) - before < 3.5 * size


def test_undo_brings_back_the_digest_of_a_step_and_the_path_goes_on_from_it(begin):
    """Of a swarm's saves ever fewer are kept of earlier steps. The phase's first step is there."""
    run, digests, starts = begin(changed(CONFIG, inner={"steps": 12}), until=0), {}, []
    task = work_until_claimed(run, "train", 0)
    path, until = task.path, 8

    def night(work):
        state, losses = work.state.take(), [*work.losses]
        starts.append((work.first_step, trees.digest(state.parts)))
        for step in range(work.first_step, until):
            run.ledger.swarms.put_step(MODULAR, path, GroupStep(step, "a", 1.0, 9.0, 1.0, {}))
            parts = jax.tree.map(lambda leaf: leaf + np.float32(1), state.parts)
            state, losses = state._replace(parts=parts, step=state.step + 1), [*losses, 1.0]
            digests[step + 1] = trees.digest(parts)
            work.save(state, losses)
        return PhaseResult(state, np.float32(losses), 4)

    worker = worker_of(run, "others", kinds=("train",), runner=Volunteers(run, night))
    assert worker.run_once()
    saved = run.ledger.facts.partial_snapshots(MODULAR, path, 0)
    assert [one.step for one in saved] == [8, 7, 5, 1]
    with pytest.raises(CannotUndo, match=r"step 4: .* there are steps 0, 1, 5, 7, 8\."):
        undo_steps(run, path, 4)
    join(run.ledger, "back")
    run.ledger.swarms.put_backbone("back", MODULAR, path, "tcp://here:1")
    with pytest.raises(WorkersActive, match="back leads or follows"):
        undo_steps(run, path, 5)
    run.ledger.swarms.drop_backbone("back")
    undo_steps(run, path, 5)
    assert [one.step for one in run.ledger.swarms.steps(MODULAR, path)] == [0, 1, 2, 3, 4]
    snapshots = list((run.layout.root / "objects").rglob("*partial*"))
    assert len(snapshots) <= 1, "the others are deleted"
    work_while(lambda: (5, digests[5]) not in starts, worker)
    undo_steps(run, path, 0)
    assert not run.ledger.facts.partial_snapshots(MODULAR, path, 0)
