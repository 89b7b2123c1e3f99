"""`train` and `pretrain`: one path through one phase.

Assemble the path, take tau inner steps, and dissect it. Save its snapshot and its contribution
to each of its modules, or in an arm without outer steps the modules. A synchronous arm is trained
by `train_synchronous.py`. DiPaCo Algorithm 1, lines 3-14.
"""

import itertools
import time
from collections.abc import Callable

from dipaco.control.planning.tasks import Claim, Fact, GradientNorms
from dipaco.inner.state import Handover
from dipaco.runs.run import Run
from dipaco.workers.callbacks import OnPathStep
from dipaco.workers.errors import Preempted
from dipaco.workers.late_modules import merged, wait_for_modules
from dipaco.workers.phase_end import end_phase, partial_snapshot_of
from dipaco.workers.phase_start import PhaseStart, phase_start
from dipaco.workers.runners import Runner, phase_work


def train(
    run: Run,
    claim: Claim,
    runner: Runner,
    on_step: OnPathStep,
    should_stop: Callable[[], bool] = lambda: False,
    should_leave: Callable[[], bool] = lambda: True,
) -> list[Fact]:
    """Trains one path through one phase, or the rest of it, and saves what it made.

    A path that goes ahead (`Arm.goes_ahead`) takes the phase in two pieces: up to `merges_at` and,
    merged with its modules, to the end.

    Args:
      should_leave: called while the path waits for late modules (`outer.delay`). True ends the
        waiting.

    Returns:
      The facts to record. The list is empty on hosts other than the first, which do not save.

    Raises:
      Preempted: `should_stop` returned True, or `should_leave` did.
      ClaimLost: `should_stop` or `should_leave` raised it.
      Diverged: a loss is not finite. Nothing of the phase is kept.
    """
    started, hosts = time.monotonic(), runner.hosts
    start = hosts.run_on_all(lambda: phase_start(run, claim), _summary)
    phase_begins, phase_ends = start.steps
    merges_at = start.merges_at

    # A runner gives the losses of the whole phase so far: `phase_begins` + their number is the
    # step that is reached.
    until = phase_ends if merges_at is None else merges_at
    result = runner(phase_work(run, start, until, on_step, should_stop))
    if phase_begins + len(result.losses) == merges_at:
        since = time.monotonic()
        are_all_there = hosts.decided_by_first(lambda: wait_for_modules(run, claim, should_leave))
        started += time.monotonic() - since  # Waiting is no part of the phase's seconds.
        if are_all_there:
            start = merged(run, start, result)
            del result  # Its state would be in memory beside the merged one.
            # It does not stop right after the merge: `phase_start` takes a partial snapshot at step
            # `merges_at` for one from before the merge.
            asked = itertools.count()
            result = runner(
                phase_work(
                    run, start, phase_ends, on_step, lambda: next(asked) > 0 and should_stop()
                )
            )

    if not hosts.is_first:
        return []
    losses, seconds = result.losses.tolist(), start.seconds + time.monotonic() - started
    if phase_begins + len(losses) < phase_ends:
        saved = partial_snapshot_of(run, start, result.state, losses, seconds, result.norms)
        raise Preempted(saved)
    norms, state = GradientNorms.over(result.norms), Handover(result.state)
    del result
    return end_phase(run, start, state, losses, norms, seconds, is_sent=runner.must_send_snapshots)


def _summary(start: PhaseStart) -> str:
    """What must be equal on all hosts: they may have read the ledger at different moments."""
    return f"{start.claim.task} at {start.next_step}"
