"""Why nothing happens in a run, in one line: what `dipaco status` says first.

The reasons are in the order in which a person would act on them: a run that waits for `dipaco
resume` and has no workers needs the first more than the second.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.control.claims.failures import Failure
from dipaco.control.claims.queue import LEASE_SECONDS, HeldClaim, UnfinishedTask
from dipaco.control.claims.silent_workers import stalled_limit
from dipaco.control.facts.quorums import StepInGrace
from dipaco.control.ledger import Ledger
from dipaco.control.members.members import Member
from dipaco.plural import are, counted

QUIET_SHARE = 0.5  # A worker may be dead after this share of a lease without a heartbeat.
STALLED_SHARE = 0.5  # A task may hang after this share of the time that ends its claim.
FULL_BYTES = 1 << 20  # a disk with less is full


class Reason(NamedTuple):
    """The activity of a run, or why it does nothing."""

    state: str  # one word, for programs
    sentence: str


class Situation(NamedTuple):
    """The facts of one moment that the reason follows from."""

    command: str  # run, pause, drain
    tasks: Sequence[UnfinishedTask]
    claims: Sequence[HeldClaim]
    members: Sequence[Member]  # all that ever took part
    failures: Sequence[Failure]
    is_stuck: bool  # no task can go on without one that has failed
    graces: Sequence[StepInGrace]
    full_disk: str  # the folder whose disk is full, or empty

    @property
    def here(self) -> list[Member]:
        return [member for member in self.members if member.state == "here"]

    @property
    def alive(self) -> list[Member]:
        """Those that are here and have had a heartbeat lately."""
        return [m for m in self.here if m.silent_seconds < LEASE_SECONDS and not m.is_silent]


def situation_of(ledger: Ledger, folder: Path, graces: Sequence[StepInGrace]) -> Situation:
    """Reads it. `folder` is the run's on this machine. Its disk is checked."""
    return Situation(
        command=ledger.meta.command().name,
        tasks=ledger.queue.unfinished(),
        claims=ledger.queue.held(),
        members=ledger.members.as_seen_here(),
        failures=ledger.failures.list(),
        is_stuck=bool(ledger.failures.stuck()),
        graces=graces,
        full_disk=str(folder) if _is_full(folder) else "",
    )


def why(at: Situation) -> Reason:
    """The reason why nothing happens, or `working`, or `finished`."""
    if not at.tasks:
        texts = [failure for failure in at.failures if failure.state == "failed"]
        but = f" but {counted(len(texts), 'text')}: {_failed(at)}" if texts else ""
        return Reason("finished", f"finished: every task is done{but}")
    if at.command != "run":
        state = "draining" if at.command == "drain" else "paused"
        left = f", with {counted(len(at.alive), 'worker')} still here"
        return Reason(state, f"{state}{left}; `dipaco resume` goes on")
    if at.is_stuck:
        return Reason("failed", f"cannot go on: {_failed(at)}")
    if at.full_disk:
        return Reason("disk_full", f"the disk of {at.full_disk} is full: free some space")
    if not at.here:
        return Reason("no_worker", f"no worker is here: {_ready(at)}, start some.{_last_words(at)}")
    if not at.alive:
        least = min(at.here, key=lambda member: member.silent_seconds)
        silent = f"all {len(at.here)} workers are silent, {least.name} for the shortest time"
        advice = "see whether they live, or start others, which take their tasks over"
        return Reason("silent", f"{silent} ({least.silent_seconds:.0f} s): {advice}")
    return _of_live_workers(at)


def _of_live_workers(at: Situation) -> Reason:
    quiet = {m.name: m for m in at.members if m not in at.alive or _is_quiet(m)}
    live = [claim for claim in at.claims if claim.worker not in quiet]
    ready = [each for each in at.tasks if each.state == "ready"]
    failed = f"; {_failed(at)}" if any(f.state == "failed" for f in at.failures) else ""
    if live:
        workers = counted(len({claim.worker for claim in live}), "worker")
        held = f"{counted(len(live), 'task')} {are(len(live))} held by {workers}"
        stalled = [claim for claim in live if _is_stalled(claim)]
        hangs = f"; {_hangs(stalled)}" if stalled else ""
        state = "working" if len(stalled) < len(live) else "stalled"
        return Reason(state, f"{held}, {len(ready)} are ready{hangs}{failed}")
    if ready:
        return _of_ready(at, ready, failed)
    if at.claims:
        return _of_dead(at, quiet)
    if at.graces:
        first = min(at.graces, key=lambda grace: grace.seconds_left)
        step = f"{first.module} phase {first.phase} has its quorum"
        seconds = max(0.0, first.seconds_left)
        return Reason("quorum", f"{step} and waits {seconds:.0f} s for the rest{failed}")
    delayed = [failure for failure in at.failures if failure.state == "delayed"]
    if delayed:
        first = min(delayed, key=lambda failure: failure.seconds_left)
        again = f"is tried again in {max(0.0, first.seconds_left):.0f} s"
        times = f"went wrong {counted(first.attempts, 'time')}"
        return Reason("delayed", f"`{first.task}` {times} and {again}: {first.reason}")
    return Reason("unknown", "no task can be done, and none is waited for: this is a defect")


def _of_ready(at: Situation, ready: Sequence[UnfinishedTask], failed: str) -> Reason:
    kinds = {each.task.kind for each in ready}
    able = [m for m in at.alive if not m.kinds or kinds & set(m.kinds)]
    if able:
        number = f"{counted(len(ready), 'task')} {are(len(ready))} ready"
        return Reason("working", f"{number} for {counted(len(able), 'worker')}{failed}")
    what = ", ".join(sorted(kinds))
    none = f"none of {counted(len(at.alive), 'worker')} here does {what}"
    return Reason("no_such_worker", f"{none}, and {len(ready)} are ready: start `dipaco worker`")


def _of_dead(at: Situation, quiet: dict[str, Member]) -> Reason:
    # A worker may end a lease that it has seen not renewed for as long.
    looked_seconds = max(member.live_seconds + member.silent_seconds for member in at.alive)

    def left(claim: HeldClaim) -> float:
        member = quiet.get(claim.worker)
        silent_seconds = 0.0 if member is None else member.silent_seconds
        return claim.lease_seconds - min(silent_seconds, looked_seconds)

    first = min(at.claims, key=left)
    member = quiet.get(first.worker)
    silent = "is gone" if member is None else f"is silent for {member.silent_seconds:.0f} s"
    seconds = f"about {max(0.0, left(first)):.0f} s"
    return Reason(
        "lease", f"`{first.task}` is held by {first.worker}, which {silent}: free in {seconds}"
    )


def _is_stalled(claim: HeldClaim) -> bool:
    return claim.stalled_seconds >= STALLED_SHARE * stalled_limit(claim.lease_seconds)


def _hangs(stalled: Sequence[HeldClaim]) -> str:
    first = max(stalled, key=lambda claim: claim.stalled_seconds)
    more = f" (and {len(stalled) - 1} more)" if len(stalled) > 1 else ""
    no_progress = f"has made no progress on {first.worker} for {first.stalled_seconds:.0f} s"
    limit = f"{stalled_limit(first.lease_seconds):.0f} s"
    advice = f"another worker takes it over after {limit}; with no other, end that process"
    return f"`{first.task}`{more} {no_progress} and may hang: {advice}"


def _failed(at: Situation) -> str:
    failed = [failure for failure in at.failures if failure.state == "failed"]
    # Nothing waits for a text of a release.
    first, *others = sorted(failed, key=lambda failure: failure.task.kind == "sample")
    more = f" (and {len(others)} more)" if others else ""
    advice = "`dipaco retry` has it done again"
    return f"`{first.task}`{more} failed, at last on {first.worker}; {advice}: {first.reason}"


def _ready(at: Situation) -> str:
    ready = sum(each.state == "ready" for each in at.tasks)
    if ready:
        return f"{counted(ready, 'task')} {are(ready)} ready"
    return f"{counted(len(at.tasks), 'task')} {are(len(at.tasks))} left"


def _last_words(at: Situation) -> str:
    """The reason of the worker that left last, if it did not leave in order."""
    last = min(at.members, key=lambda member: member.silent_seconds, default=None)
    return f" {last.name} left with {last.last_words}" if last and last.last_words else ""


def _is_quiet(member: Member) -> bool:
    return member.silent_seconds > QUIET_SHARE * LEASE_SECONDS


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < FULL_BYTES
    except OSError:  # a bucket's run has no folder here yet
        return False
