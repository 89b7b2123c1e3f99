"""Tasks that raise an error: the ledger counts it, and other tasks go on.

The ledger decides when a task has failed for good (`control/claims/failures.py`). A worker on which
several tasks in a row fail, while others are at work, ends: the fault may be its machine's, and a
machine that fails fast would otherwise take and fail everybody's tasks.
"""

import errno
import os
from collections.abc import Sequence

from dipaco.control.claims.failures import Failure
from dipaco.control.database.contract import storable
from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import ClaimLost, DiskFull, MachineFault, NotWritable, missing_package
from dipaco.plural import listed
from dipaco.runs.run import Run
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import ManyTasksFailed, TaskFailed

MOST_FAILING = 3  # different tasks in a row, before the worker ends
REASON_CHARACTERS = 500
IS_FULL = (errno.ENOSPC, errno.EDQUOT)
IS_SICK = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class FailureCounter:
    """The failures of one worker's tasks."""

    def __init__(self, run: Run, name: str, callbacks: Callbacks):
        self._run, self._name, self._callbacks = run, name, callbacks
        self._failing: set[Task] = set()  # since a task succeeded
        self._have_failed = True  # True if a task of the run has failed, and until that is known
        self._lasting: dict[Task, Exception] = {}  # errors that need a person

    def fail(self, claim: Claim, error: Exception, *, is_crash: bool = False) -> None:
        """Counts an error against its task, and gives the task up for now.

        Args:
          is_crash: another host of this worker may have died of it, or been preempted.

        Raises:
          ManyTasksFailed: so did other tasks before it, and there are other workers.
        """
        reason, is_lasting = reason_of(error), getattr(error, "is_lasting", False)
        try:
            is_final = self._run.ledger.failures.fail(
                claim, reason, is_lasting=is_lasting, is_crash=is_crash
            )
        except ClaimLost:
            self._callbacks.claim_lost(claim)
            return
        self._callbacks.task_failed(claim, reason, is_final=is_final)
        if is_lasting:
            self._lasting[claim.task] = error
            return
        self._failing.add(claim.task)
        if len(self._failing) >= MOST_FAILING and self._has_others():
            raise ManyTasksFailed(count=len(self._failing), task=claim.task, reason=reason)

    def succeed(self) -> None:
        """A task was done here."""
        self._failing.clear()

    def end_delays(self) -> bool:
        """Makes delayed tasks ready that have waited long enough. True if there were any."""
        delays = self._run.ledger.failures.end_delays()
        self._have_failed = delays.have_failed
        return delays.have_ended

    def check(self) -> None:
        """Raises `TaskFailed` if the run cannot go on without a task that has failed. If it failed
        here with an error that lasts (text or settings that cannot be used), raises that error.
        """
        failed = self._run.ledger.failures.stuck() if self._have_failed else []
        if failed and failed[0].task in self._lasting:
            raise self._lasting[failed[0].task]
        refuse_stuck(failed)

    def _has_others(self) -> bool:
        return any(member.name != self._name for member in self._run.ledger.members.here())


def fault_of_machine(error: Exception) -> MachineFault | None:
    """The fault of this machine behind an error: its log does not fit on the disk, say, or a
    package for training is missing. None: it may be the task's.
    """
    if (missing := missing_package(error)) is not None:
        return missing
    if not isinstance(error, OSError) or error.errno not in (*IS_FULL, *IS_SICK):
        return None
    file = error.filename or "the log or the events of this process"
    if error.errno in IS_FULL:
        return DiskFull(file=file)
    return NotWritable(file=file, problem=os.strerror(error.errno))


def refuse_stuck(failed: Sequence[Failure]) -> None:
    """Raises `TaskFailed` for tasks without which a run cannot go on, if there are any."""
    if not failed:
        return
    first, *others = failed
    times = "once" if first.attempts == 1 else f"{first.attempts} times"
    more = f"Failed as well: {listed((each.task for each in others), 3)}. " if others else ""
    raise TaskFailed(
        task=first.task, times=times, worker=first.worker, reason=first.reason, others=more
    )


def reason_of(error: Exception) -> str:
    """An error as it is kept in the ledger and printed: its name and its sentence, on one line."""
    text = storable(" ".join(str(error).split()))
    if len(text) > REASON_CHARACTERS:
        text = f"{text[:REASON_CHARACTERS]} ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
