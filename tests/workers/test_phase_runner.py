"""A phase whose steps a phase runner takes, stopped before its end."""

import numpy as np

from dipaco.config import MODULAR
from dipaco.inner.phase import PhaseResult
from dipaco.runs.reading.progress import progress_of
from dipaco.workers.runners import Volunteers
from tests.workers.conftest import CONFIG, worker_of


def test_the_next_worker_goes_on_from_the_snapshot_of_a_stopped_phase_runner(begin):
    run, begun = begin(CONFIG, until=0), []

    def one_step(work):
        begun.append((work.origin, work.losses))
        state = work.state._replace(step=work.state.step + 1)
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
