"""A launcher without a name takes that of one that has ended and whose workers are at work."""

import re
import socket
import subprocess

import pytest

from dipaco.control.process_id import ProcessId, _began
from dipaco.launch.errors import LauncherNameTaken
from dipaco.launch.launcher_name import launcher_name
from tests.support.members import join

LAUNCH = "-[a-z]+"  # roles of `dipaco launch`
MADE_UP = "h-7-0a1b2c"


def put_owner(ledger, name, process_id):
    """Whoever had the name, a launcher of this process has it."""
    assert ledger.meta.take_launcher_name(
        name, process_id, after=ledger.meta.launcher_process(name)
    )


@pytest.fixture
def alive():
    """Lives of two processes that are alive: a worker's, and a launcher's."""
    with subprocess.Popen(["sleep", "600"]) as one, subprocess.Popen(["sleep", "600"]) as two:
        yield [str(ProcessId.here()._replace(pid=p.pid, began=_began(p.pid))) for p in (one, two)]
        one.kill()
        two.kill()


@pytest.fixture
def over():
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return str(ProcessId.here()._replace(pid=process.pid, began="1"))


def test_the_same_command_goes_on_under_the_name_of_a_launcher_that_was_killed(ledger, alive, over):
    name = MADE_UP
    put_owner(ledger, name, over)
    join(ledger, f"{name}-worker-1", process_id=alive[0])
    assert launcher_name(None, ledger) != name, "its workers would have other names"
    assert launcher_name(None, ledger, LAUNCH) == name
    put_owner(ledger, name, over)
    ledger.members.leave(f"{name}-worker-1", alive[0])
    assert launcher_name(None, ledger, LAUNCH) != name
    join(ledger, f"{name}-1", process_id=alive[0])
    assert launcher_name(None, ledger) == name


def test_no_name_is_taken_of_a_launcher_that_is_alive_elsewhere_or_without_workers(
    ledger, alive, over
):
    elsewhere = "another-boot pid:[1] 7 99"
    owners = {"h-1-00000a": alive[1], "h-2-00000b": over, "h-3-00000c": over, "h-4-00000d": None}
    process_ids = {"h-1-00000a": alive[0], "h-2-00000b": over, "h-3-00000c": elsewhere}
    owners |= {"h-5-00000e": elsewhere, "lab": over}
    for name, owner in owners.items():
        if owner is not None:
            put_owner(ledger, name, owner)
        join(ledger, f"{name}-worker-0", process_id=process_ids.get(name, alive[0]))
    name = launcher_name(None, ledger, LAUNCH)
    assert re.fullmatch(re.escape(socket.gethostname()) + r"-\d+-[0-9a-f]{6}", name)
    assert name not in owners


@pytest.mark.parametrize("looks_before", [False, True])
def test_of_two_launchers_one_takes_the_name_of_one_that_was_killed(
    ledger, alive, over, monkeypatch, looks_before
):
    """Also where the second has looked at the name before the first took it."""
    put_owner(ledger, MADE_UP, over)
    for worker in (0, 1):
        join(ledger, f"{MADE_UP}-worker-{worker}", process_id=alive[0])
    first = ProcessId.parse(alive[1])
    with monkeypatch.context() as patch:
        patch.setattr(ProcessId, "here", lambda: first)
        if not looks_before:
            assert launcher_name(None, ledger, LAUNCH) == MADE_UP
    if looks_before:
        is_over = ProcessId.is_over

        def then_takes(process_id):
            if str(process_id) == over:
                put_owner(ledger, MADE_UP, str(first))
            return is_over(process_id)

        monkeypatch.setattr(ProcessId, "is_over", then_takes)
    assert launcher_name(None, ledger, LAUNCH) != MADE_UP
    assert ledger.meta.launcher_process(MADE_UP) == str(first)


@pytest.mark.parametrize("given", [None, "given"])
def test_the_name_of_a_launcher_is_recorded_with_its_life(ledger, alive, over, given):
    name = launcher_name(given, ledger, LAUNCH)
    assert given in (None, name)
    assert ledger.meta.launcher_process(name) == str(ProcessId.here())
    put_owner(ledger, name, over)
    assert launcher_name(name, ledger, LAUNCH) == name
    assert ledger.meta.launcher_process(name) == str(ProcessId.here())


def test_a_name_is_refused_whose_launcher_is_at_work_on_this_machine(ledger, alive):
    """Their workers would have the same names: those of the second would wait for ever."""
    put_owner(ledger, "lab", alive[1])
    pid = ProcessId.parse(alive[1]).pid
    with pytest.raises(LauncherNameTaken, match=rf"`lab` is at work .*process {pid}.*`--name`"):
        launcher_name("lab", ledger, LAUNCH)
    assert ledger.meta.launcher_process("lab") == alive[1]
    assert launcher_name("other", ledger, LAUNCH) == "other"
    put_owner(ledger, "lab", "another-boot pid:[1] 7 99")
    assert launcher_name("lab", ledger, LAUNCH) == "lab", "of a machine that may be gone"


def test_of_two_launchers_that_start_together_one_has_the_name(ledger, alive, monkeypatch):
    """Both have seen that nobody has it."""
    meta, take = ledger.meta, ledger.meta.take_launcher_name

    def take_as_second(*words, **more):
        assert take("lab", alive[1], after=None)
        monkeypatch.setattr(meta, "take_launcher_name", take)
        return take(*words, **more)

    monkeypatch.setattr(meta, "take_launcher_name", take_as_second)
    with pytest.raises(LauncherNameTaken, match=rf"process {ProcessId.parse(alive[1]).pid} "):
        launcher_name("lab", ledger, LAUNCH)
    assert meta.launcher_process("lab") == alive[1]


def test_a_name_is_taken_after_the_life_that_was_seen_and_again_by_the_same(ledger, alive, over):
    take = ledger.meta.take_launcher_name
    assert not take("lab", alive[0], after=over), "nobody has had it"
    assert take("lab", over, after=None)
    assert take("lab", over, after=None), "after a connection was lost, it is asked for again"
    assert not take("lab", alive[0], after=None)
    assert take("lab", alive[0], after=over)
    assert ledger.meta.launcher_process("lab") == alive[0]
