"""Whether somebody of a name is at work on a run already.

A worker that died comes back under its name, and what it held is given back at once. Two of one
name that are both alive would take each other's tasks for ever.
"""

import os
import socket
import time
from collections.abc import Callable

import dipaco
from dipaco.control.members import Member, Members
from dipaco.workers.errors import NameTaken
from dipaco.workers.heartbeat import MAX_HEARTBEAT_SECONDS

LOOK_SECONDS = 0.5
SILENT_SECONDS = 1.5 * MAX_HEARTBEAT_SECONDS  # whoever lives is heard of within that


def register(members: Members, name: str, machine: str, say: Callable[[str], None]) -> None:
    """Takes a place in the roster, as soon as nobody of this name is at work.

    Args:
      roster, name, say: see `wait_until_name_is_free`.
      machine: what the bits of its results depend on.

    Raises:
      NameTaken.
    """
    here = {"host": socket.gethostname(), "pid": os.getpid(), "version": dipaco.__version__}
    while True:
        before = wait_until_name_is_free(members, name, say)
        if members.join(name, machine=machine, after=before, **here):
            return


def wait_until_name_is_free(
    members: Members, name: str, say: Callable[[str], None], silent_seconds: float = SILENT_SECONDS
) -> Member | None:
    """Returns when nobody of this name is at work: at once, but where one may be.

    Args:
      roster: of the run.
      name: of a worker that is about to join.
      say: told a sentence where it takes a while.
      silent_seconds: after which somebody is dead.

    Returns:
      Who has died there; None where there is nobody.

    Raises:
      NameTaken: somebody is.
    """
    before: Member | None = None
    while True:
        known = {member.name: member for member in members.list() if member.state == "here"}
        member = known.get(name)
        if member is None or member.epoch != members.epoch:  # before this machine was started anew
            return member
        if member.silent_seconds > silent_seconds or _is_dead(member):
            return member
        if before is None:
            say(f"{name} was at work {member.silent_seconds:.0f} s ago; waiting to see if it lives")
        elif member.silent_seconds < before.silent_seconds:  # it was heard of again
            raise NameTaken(name=name, pid=member.pid, host=member.host)
        before = member
        time.sleep(LOOK_SECONDS)


def _is_dead(member: Member) -> bool:
    """Whether that is certain: a process of this machine that is no more."""
    if member.host != socket.gethostname():
        return False
    if member.pid == os.getpid():  # in a container that was started again
        return True
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
