"""Phases of phase runners: one that is stopped before its end, and the memory of one."""

import weakref

import jax
import numpy as np

from dipaco.config import MODULAR
from dipaco.inner.phase import PhaseResult
from dipaco.runs.reading.progress import progress_of
from dipaco.workers import phase_start, runners
from dipaco.workers.runners import Volunteers
from tests.workers.conftest import CONFIG, worker_of


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

    while (begun[0][0], (5.0,)) not in begun:  # it may take another path first
        assert worker.run_once()
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
    worker = worker_of(run, "one")
    while not run.ledger.facts.has_module(MODULAR, run.config.topology.modules[0], 3):
        assert worker.run_once()
    assert loaded
    assert not any(on_host)
    assert max(on_device) - before < 3.5 * size
