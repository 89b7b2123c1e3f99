"""Sends snapshots to the run's bucket while training goes on
(`retention.send_snapshots=while_training`).

A phase is recorded once its snapshot is on this machine's disk; a thread of the worker then sends
it, one snapshot at a time, while the worker does its next tasks. Where the link is slower than
that, the newest that waits of each path is sent and the others are not. If the worker is killed,
the next worker on the same disk sends what it finds there; if the disk is lost, the path trains the
phases again that the bucket does not have. Nothing that goes wrong here stops training.

The thread also deletes what newer snapshots in the bucket have superseded, halves of snapshots
included that a killed process sent.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from dipaco.control.ledger import Ledger
from dipaco.control.sent_snapshots import is_last, is_sent
from dipaco.control.tasks import Fact, PathTrained
from dipaco.plural import counted
from dipaco.runs.run import Run
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.layout import SNAPSHOTS, object_of, phase_of_snapshot
from dipaco.store.sending import send_folder
from dipaco.store.verification import DIGESTS
from dipaco.workers.snapshot_sending import sends_while_training

ENDING_SECONDS = 60.0  # of sending that a worker which ends still does; another machine may wait
AGAIN_SECONDS = 60.0  # after an error that outlasted the store's own retries

_log = logging.getLogger("dipaco")


class UnsentSnapshot(NamedTuple):
    """A snapshot that is to be sent, or that was sent before its phase was recorded."""

    arm: str
    path: int
    phase: int
    name: str

    @property
    def of_path(self) -> tuple[str, int]:
        return self.arm, self.path

    def __str__(self) -> str:
        return f"the snapshot of path {self.path} of `{self.arm}` after phase {self.phase}"


class SnapshotSender:
    """Sends the snapshots of one worker's paths, as a context manager.

    Args:
      run: in a bucket; only its config, its objects and new connections to its ledger are used by
        the thread.
    """

    def __init__(self, run: Run):
        self._run = run
        self._waiting: dict[tuple[str, int], UnsentSnapshot] = {}
        self._current: UnsentSnapshot | None = None
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._send_until_over, name="sender", daemon=True)

    def __enter__(self) -> Self:
        self._find_unsent()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        """What is being sent is left: the next worker on this disk sends it."""
        with self._changed:
            self._is_over = True
            left = self._all()
            self._changed.notify_all()
        for each in (one for one in left if not self._is_last(one)):
            _log.warning("Not sent: %s. It is on this machine's disk alone.", each)
        self._thread.join(timeout=1.0)  # a request under way is not waited for

    def recorded(self, facts: Iterable[Fact]) -> None:
        """Facts of this worker are recorded: their snapshots are sent from now on."""
        for fact in facts:
            if isinstance(fact, PathTrained):
                self._add(UnsentSnapshot(fact.arm, fact.path, fact.phase, fact.snapshot.name))

    def is_needed_here(self, name: str) -> bool:
        """Whether a snapshot must stay on this disk, since it is being sent, or will be."""
        with self._changed:
            return any(each.name == name for each in self._all())

    def finish(self, seconds: float = ENDING_SECONDS, say: Callable[[str], object] = print) -> None:
        """Waits until all is sent, for so long at most."""
        with self._changed:
            if unsent := [each for each in self._all() if not self._is_last(each)]:
                number = counted(len(unsent), "snapshot")
                say(f"Sending {number} before this worker ends, for {seconds:.0f} s at most")
            self._changed.wait_for(lambda: not self._all(), timeout=seconds)

    def _all(self) -> list[UnsentSnapshot]:
        """With the lock held: that are not known to be sent."""
        current = [] if self._current is None else [self._current]
        return [*current, *self._waiting.values()]

    def _add(self, snapshot: UnsentSnapshot) -> None:
        run, arm = self._run, self._run.plan.arm(snapshot.arm)
        every = run.config.retention.send_snapshots_every
        of = arm, snapshot.path, snapshot.phase
        if sends_while_training(run, arm) and is_sent(*of, every):
            with self._changed:
                # In the place of an older one of its path, or paths would overtake each other.
                self._waiting[snapshot.of_path] = snapshot
                self._changed.notify_all()

    def _find_unsent(self) -> None:
        """The newest snapshots that another process has left on this disk."""
        run, ledger = self._run, self._run.ledger
        for arm in run.plan.arms:
            if not sends_while_training(run, arm):
                continue
            sent = ledger.newest_sent.phases(arm.name)
            for folder in sorted((run.objects.root / SNAPSHOTS / arm.name).glob("[0-9]*")):
                path, every = int(folder.name), run.config.retention.send_snapshots_every
                of_path = ledger.retention.snapshots(arm.name, path)
                newest = max((at for at in of_path if is_sent(arm, path, at, every)), default=None)
                if newest is None or sent.get(path) == newest or is_last(arm, path, newest):
                    continue
                if run.objects.place_of(of_path[newest]).is_dir():
                    self._add(UnsentSnapshot(arm.name, path, newest, of_path[newest]))

    def _send_until_over(self) -> None:
        problem = ""
        while (snapshot := self._next()) is not None:
            try:
                with contextlib.closing(self._run.open_ledger()) as ledger:
                    self._send(ledger, snapshot)
                problem = ""
            except (ObjectMissing, ObjectDamaged) as error:
                problem = ""
                _log.warning("Not sent: %s, and the path's next one will be. %s", snapshot, error)
            except Exception as error:  # whatever it is, training goes on
                said, problem = problem, str(error) or type(error).__name__
                if problem != said:
                    _log.warning("Not sent yet: %s. It is tried again. %s", snapshot, problem)
                self._put_back(snapshot)
            with self._changed:
                self._current = None
                self._changed.notify_all()
                if problem and not self._is_over:
                    self._changed.wait_for(lambda: self._is_over, timeout=AGAIN_SECONDS)

    def _next(self) -> UnsentSnapshot | None:
        """Waits for a snapshot; None: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._waiting)
            if self._is_over:
                return None
            self._current = self._waiting.pop(next(iter(self._waiting)))
            return self._current

    def _put_back(self, snapshot: UnsentSnapshot) -> None:
        with self._changed:
            self._waiting.setdefault(snapshot.of_path, snapshot)

    def _is_in_vain(self, snapshot: UnsentSnapshot) -> bool:
        """Whether the process ends, or the path's last snapshot is in the bucket."""
        with self._changed:
            newer = self._waiting.get(snapshot.of_path)
            is_over = self._is_over
        return is_over or (newer is not None and self._is_last(newer))

    def _is_last(self, snapshot: UnsentSnapshot) -> bool:
        """Of its path: then the bucket has it, since it was sent before it was recorded."""
        return is_last(self._run.plan.arm(snapshot.arm), snapshot.path, snapshot.phase)

    def _send(self, ledger: Ledger, snapshot: UnsentSnapshot) -> None:
        arm, path, phase, name = snapshot
        if self._is_superseded(ledger, snapshot):
            return
        objects = self._run.objects
        was_sent = send_folder(objects, name, lambda: self._is_in_vain(snapshot))
        if self._is_over:
            return
        if was_sent and self._is_superseded(ledger, snapshot):
            assert objects.remote is not None
            objects.remote.delete_folder(name)
        else:
            ledger.newest_sent.note(arm, path, phase)
            self._delete_superseded_there(snapshot)
        self._delete_superseded_here(ledger, snapshot)

    def _is_superseded(self, ledger: Ledger, snapshot: UnsentSnapshot) -> bool:
        """Whether the bucket does not need this snapshot: it has a newer one, or that of another
        attempt at this phase, or the run went back.
        """
        arm, path, phase, name = snapshot
        of_path = ledger.retention.snapshots(arm, path)
        has_newer = ledger.newest_sent.phases(arm).get(path, phase) > phase
        has_last = max(of_path, default=phase) > phase and is_last(
            self._run.plan.arm(arm), path, max(of_path)
        )
        return of_path.get(phase) != name or has_newer or has_last

    def _delete_superseded_there(self, snapshot: UnsentSnapshot) -> None:
        """In the bucket, snapshots of the path before the oldest whole one that is kept."""
        remote, keep = self._run.objects.remote, self._run.config.retention.num_snapshots
        assert remote is not None
        files = remote.names(snapshot.name.rpartition("/")[0])
        phases = {
            name: phase
            for name in {object_of(file) for file in files}
            if (phase := phase_of_snapshot(name)) is not None and phase <= snapshot.phase
        }
        whole = {phases[name] for name in phases if f"{name}/{DIGESTS}" in files}
        oldest = min(sorted(whole)[-keep:], default=0)
        for name, phase in phases.items():
            if phase < oldest:
                remote.delete_folder(name)

    def _delete_superseded_here(self, ledger: Ledger, snapshot: UnsentSnapshot) -> None:
        """On this disk, those that could not be deleted while they were sent."""
        keep = self._run.config.retention.num_snapshots
        of_path = ledger.retention.snapshots(snapshot.arm, snapshot.path)
        until = [phase for phase in sorted(of_path) if phase <= snapshot.phase]
        for phase in until[:-keep]:
            self._run.objects.delete_here(of_path[phase])


def sender_of(run: Run) -> contextlib.AbstractContextManager[SnapshotSender | None]:
    """Of a run that sends snapshots while training goes on; None of another."""
    if any(sends_while_training(run, arm) for arm in run.plan.arms):
        return SnapshotSender(run)
    return contextlib.nullcontext()
