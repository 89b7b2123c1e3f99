"""Registration of a worker under a name that no other live worker of the run has.

A worker that died may return under its name at once if its process is known to have ended, and
otherwise when it has been silent for long. Two live workers of one name would keep taking each
other's tasks, so one that was silent ends if its name was taken meanwhile (`NameLost`).
"""

import os
import socket
import time
from collections.abc import Callable, Collection

from dipaco.control.claims.silent_workers import Counter, Silence
from dipaco.control.members.members import Member, Members
from dipaco.control.process_id import ProcessId
from dipaco.runs.version import program_version
from dipaco.workers.errors import NameTaken
from dipaco.workers.heartbeat import MAX_HEARTBEAT_SECONDS

POLL_SECONDS = 0.5
SILENT_SECONDS = 1.5 * MAX_HEARTBEAT_SECONDS  # a live worker has a heartbeat within that


def register(
    members: Members,
    name: str,
    machine: str,
    say: Callable[[str], None],
    kinds: Collection[str] = (),
) -> None:
    """Registers a worker as soon as no other of its name is alive.

    Args:
      machine: names the hardware and software that the bits of its results depend on.

    Raises:
      NameTaken: another is alive.
    """
    while True:
        before = wait_until_name_is_free(members, name, say)
        if members.join(
            name,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_id=str(ProcessId.here()),
            machine=machine,
            version=program_version(),
            kinds=kinds,
            after=before,
        ):
            return


def wait_until_name_is_free(
    members: Members, name: str, say: Callable[[str], None], silent_seconds: float = SILENT_SECONDS
) -> Member | None:
    """Waits until no worker of this name is alive. Returns at once unless one may be.

    Args:
      say: called with a sentence if it has to wait.
      silent_seconds: a worker without a heartbeat for as long, while this looks, counts as dead.

    Returns:
      The dead worker of this name, or None.

    Raises:
      NameTaken: it is alive.
    """
    before: Member | None = None
    silence = Silence()
    while True:
        known = {member.name: member for member in members.list() if member.state == "here"}
        member = known.get(name)
        if member is None or member.epoch != members.epoch:  # it was here before a reboot
            return member
        if (
            member.process_id == str(ProcessId.here())
            or ProcessId.parse(member.process_id).is_over()
        ):
            return member  # this process, which takes part again, or one that has ended
        is_silent = silence.over({name: Counter(member.heartbeats, silent_seconds)})
        if member.is_silent or is_silent:
            return member
        if before is None:
            say(f"{name} may be alive; waiting to see whether it is ({silent_seconds:.0f} s)")
        elif member.heartbeats > before.heartbeats:
            raise NameTaken(name=name, pid=member.pid, host=member.host)
        before = member
        time.sleep(POLL_SECONDS)
