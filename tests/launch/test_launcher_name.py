"""A launcher without a name takes that of one that has ended and whose workers are at work."""

import re
import socket
import subprocess

import pytest

from dipaco.control.ledger import open_ledger
from dipaco.control.life import Life, _began
from dipaco.launch.launcher_name import launcher_name

OF = {"host": "h", "pid": 1, "machine": "m", "version": "0"}


@pytest.fixture
def members(tmp_path):
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.start({})
        yield ledger.members


@pytest.fixture
def alive():
    """The number of a process that is alive, and its life."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid, Life.here()._replace(pid=process.pid, began=_began(process.pid))
        process.kill()


@pytest.fixture
def over():
    """The number of a process that has ended, and its life."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid, Life.here()._replace(pid=process.pid, began="1")


def made_up(pid, host=None):
    return f"{host or socket.gethostname()}-{pid}-0a1b2c"


def test_the_same_command_goes_on_under_the_name_of_a_launcher_that_was_killed(
    members, alive, over
):
    name = made_up(over[0])
    members.join(f"{name}-worker-1", life=str(alive[1]), **OF)
    assert launcher_name(None, members, roles="-[a-z]+") == name
    assert launcher_name("given", members, roles="-[a-z]+") == "given"
    assert launcher_name(None, members) != name, "its workers would have other names"
    members.leave(f"{name}-worker-1", str(alive[1]))
    assert launcher_name(None, members, roles="-[a-z]+") != name
    members.join(f"{name}-1", life=str(alive[1]), **OF)
    assert launcher_name(None, members) == name


def test_no_name_is_taken_of_a_launcher_that_is_alive_elsewhere_or_without_workers(
    members, alive, over
):
    members.join(f"{made_up(alive[0])}-worker-0", life=str(alive[1]), **OF)
    members.join(f"{made_up(over[0])}-worker-0", life=str(over[1]), **OF)
    members.join(f"{made_up(over[0], 'another')}-worker-0", life=str(alive[1]), **OF)
    members.join(f"{made_up(over[0])}-worker-1", life="another-boot pid:[1] 7 99", **OF)
    members.join("lab-worker-0", life=str(alive[1]), **OF)
    mine = re.escape(socket.gethostname()) + r"-\d+-[0-9a-f]{6}"
    name = launcher_name(None, members, roles="-[a-z]+")
    assert re.fullmatch(mine, name)
    assert name not in (made_up(alive[0]), made_up(over[0]))
