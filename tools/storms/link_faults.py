"""The faults of hosts and their links. Each fault hits a host that holds a task, and counts only
when it is proved: packets were lost, a process is gone, another database process answers.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from storms.fleet import StormFault
from storms.host_fleet import HostFleet
from support.hosts import Direction, Link

from dipaco.control.claims.queue import HeldClaim
from dipaco.runs.run import Run

FOR_EVER = "link silent for ever"
UPLOAD = "host gone in the middle of an upload"
UPLOAD_SECONDS = 1.0  # Time for which each look watches a host for an upload.
LOOK_SECONDS = 0.005
STILL_SECONDS = 0.3  # An upload that is not stopped would end within this time.
DATABASE_SECONDS = 3.0  # Absence of the database host.


def faults_of(fleet: HostFleet, rng: random.Random) -> list[StormFault]:
    """All that can be done to this fleet, in their order."""
    silent = fleet.options.silent_seconds
    faults: list[StormFault] = [
        ("link silent", partial(_fails, fleet, rng, Link.swallow, silent)),
        (UPLOAD, partial(_gone_in_an_upload, fleet)),
        ("link only up", partial(_fails, fleet, rng, _one_way("up"), silent)),
        ("SIGKILL of the database host", partial(_database_dies, fleet)),
        ("link only down", partial(_fails, fleet, rng, _one_way("down"), silent)),
        (FOR_EVER, partial(_silent_for_ever, fleet, rng)),
    ]
    return faults


def _one_way(direction: Direction) -> Callable[[Link], None]:
    return lambda link: link.one_way(direction)


def _victim(fleet: HostFleet, rng: random.Random, run: Run) -> HeldClaim | None:
    """A claim of a worker that lives, on a host whose link is whole."""
    held = [each for each in run.ledger.queue.held() if each.worker in fleet.processes]
    return rng.choice(held) if held else None


def _fails(
    fleet: HostFleet, rng: random.Random, fail: Callable[[Link], None], seconds: float, run: Run
) -> bool:
    """A link fails for so long. Its worker must then be at work, or have ended in order."""
    held = _victim(fleet, rng, run)
    if held is None:
        return False
    link = fleet.link_of(held.worker)
    before = link.lost_packets
    fail(link)
    fleet.go_on_for(seconds, run)
    is_lost = link.lost_packets > before
    link.restore()
    fleet.limit(link)
    return is_lost


def _silent_for_ever(fleet: HostFleet, rng: random.Random, run: Run) -> bool:
    """A link fails for ever. Others must get the task of its worker."""
    held = _victim(fleet, rng, run)
    if held is None:
        return False
    link = fleet.link_of(held.worker)
    before = link.lost_packets
    link.swallow()
    fleet.forget(held.worker)
    until = time.monotonic() + fleet.options.patience_seconds
    while time.monotonic() < until:
        still = {(each.worker, each.attempt, each.task) for each in run.ledger.queue.held()}
        if (held.worker, held.attempt, held.task) not in still:
            return link.lost_packets > before
        fleet.go_on_for(0.2, run)
    raise SystemExit(f"{held.worker} is silent, and keeps {held.task}")


def _gone_in_an_upload(fleet: HostFleet, run: Run) -> bool:
    """Power and link fail at once, in the middle of an object, and then the host starts again. The
    link fails first, since only an upload that cannot end is known to be under way.
    """
    until = time.monotonic() + UPLOAD_SECONDS
    while time.monotonic() < until:
        for worker, process in list(fleet.processes.items()):
            uploading = fleet.uploading(worker)
            if not uploading.exists():
                continue
            link = fleet.link_of(worker)
            link.swallow()
            time.sleep(STILL_SECONDS)
            is_uploading = uploading.exists()
            if is_uploading:
                process.kill()
                is_uploading = process.wait() == -signal.SIGKILL
            link.restore()
            fleet.limit(link)
            if is_uploading:
                return True
        time.sleep(LOOK_SECONDS)
    return False


def _database_dies(fleet: HostFleet, run: Run) -> bool:
    """Kills all processes of the database server at once, and keeps its disk."""
    server = fleet.site.database
    before = server.process_id
    assert before is not None
    processes = descendants(before)
    server.kill()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    time.sleep(DATABASE_SECONDS)
    server.start()
    return server.process_id not in (None, before)


def descendants(process_id: int) -> list[int]:
    """The descendants of a process, without itself."""
    try:
        words = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    except OSError:
        return []
    return [each for word in words for each in (int(word), *descendants(int(word)))]
