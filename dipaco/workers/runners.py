"""Runners take the steps of a phase: this process, the hosts of one worker, or volunteers.

`train` calls all of them in the same way.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dipaco.inner.absent import PRESENT
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.phase import PhaseResult, run_phase
from dipaco.inner.phase_runner import PhaseRunner, PhaseWork
from dipaco.inner.state import Handover, PathState
from dipaco.inner.step import Batch
from dipaco.runs.run import Run
from dipaco.workers.callbacks import OnPathStep
from dipaco.workers.hosts import SINGLE_HOST, Hosts
from dipaco.workers.keeping import delete_partial_snapshots, partial_snapshots_of
from dipaco.workers.phase_end import partial_snapshot_of
from dipaco.workers.phase_start import PhaseStart


class Runner(PhaseRunner, Protocol):
    """A `PhaseRunner` of a worker."""

    @property
    def hosts(self) -> Hosts:
        """The processes that call the runner together. Each gets the whole state, and the first one
        saves it.
        """
        ...

    @property
    def must_send_snapshots(self) -> bool:
        """True if other machines go on from the path's snapshot, so that the bucket must get it."""
        ...

    @property
    def without_volunteers(self) -> "Runner":
        """The runner of the base model's steps, in which volunteers have no part."""
        ...


def runner_of(run: Run, hosts: Hosts) -> Runner:
    """The runner of a worker that takes its own steps."""
    return OneHost(run) if hosts.count == 1 else SeveralHosts(run, hosts)


class OneHost:
    """Takes the steps on the devices of this process."""

    hosts: Hosts = SINGLE_HOST
    must_send_snapshots = False

    def __init__(self, run: Run):
        self._run = run

    @property
    def without_volunteers(self) -> Runner:
        return self

    def __call__(self, work: PhaseWork) -> PhaseResult:
        programs = self._run.programs
        result = run_phase(
            programs.place_taken(work.state),
            map(programs.place_batch, work.batches),
            work.rates,
            programs.step,
            taken=len(work.losses),
            on_step=work.on_step,
            should_stop=work.should_stop,
        )
        losses = np.concatenate([np.asarray(work.losses, np.float32), result.losses])
        return result._replace(losses=losses, norms=(*work.norms, *result.norms))


class SeveralHosts:
    """Takes the steps on the mesh of several hosts, each of which calls this."""

    must_send_snapshots = True

    def __init__(self, run: Run, hosts: Hosts):
        self._run, self.hosts = run, hosts

    @property
    def without_volunteers(self) -> Runner:
        return self

    def __call__(self, work: PhaseWork) -> PhaseResult:
        def should_stop() -> bool:
            return self.hosts.decided_by_first(work.should_stop)

        result = OneHost(self._run)(work._replace(should_stop=should_stop))
        return result._replace(state=self._run.programs.gather(result.state))


class Volunteers:
    """Has the volunteers of a path take the steps.

    Args:
      lead: takes the steps with them, and saves partial snapshots now and then.
    """

    hosts: Hosts = SINGLE_HOST
    # The path's other backbones (workers that lead volunteers), on other machines, go on from it.
    must_send_snapshots = True

    def __init__(self, run: Run, lead: PhaseRunner):
        assert not run.config.inner.freeze_absent_tokens, "`dipaco swarm` refuses it"
        assert run.config.outer.delay == 0, "`dipaco swarm` refuses `outer.delay`"
        self._run, self._lead = run, lead

    @property
    def without_volunteers(self) -> Runner:
        return OneHost(self._run)

    def __call__(self, work: PhaseWork) -> PhaseResult:
        state = self._run.programs.on_host(*work.state.take())
        return self._lead(work._replace(state=Handover(state)))


def phase_work(
    run: Run,
    start: PhaseStart,
    until: int,
    on_step: OnPathStep,
    should_stop: Callable[[], bool],
) -> PhaseWork:
    """The steps of a path from `start` to step `until`, for any of the runners."""
    claim, next_step, began = start.claim, start.next_step, time.monotonic()
    count, tokens = until - next_step, run.config.inner.batch_size * run.config.data.length
    present_V = run.present_tokens(start.arm.name, claim.task.path, claim.task.phase)

    def prepared(batch: Batch) -> Batch:
        return batch if present_V is None else {**batch, PRESENT: present_V}

    def save(state: PathState, losses: Sequence[float]) -> None:
        seconds = start.seconds + time.monotonic() - began
        partial_snapshot = partial_snapshot_of(run, start, state, losses, seconds)
        before = partial_snapshots_of(run, claim)
        run.ledger.commit.save_partial_snapshot(claim, partial_snapshot)
        delete_partial_snapshots(run, claim, before)

    digests = {str(module): receipt.digest for module, receipt in start.receipts.items()}
    return PhaseWork(
        origin=f"{claim.task} {sorted(digests.items())}",
        state=start.state,
        first_step=next_step,
        losses=start.losses,
        rates=learning_rates(run.config.inner, start.arm.total_steps, next_step, count),
        batches=map(prepared, start.batches.iterate(start.taken, count)),
        # The runner counts steps of the schedule. The position in the data may differ.
        batch_at=lambda step: prepared(start.batches.at(start.taken + step - next_step)),
        on_step=lambda _, loss: on_step(loss, tokens),
        should_stop=should_stop,
        save=save,
        norms=start.norms,
    )
