"""Several processes of one run: one that was suspended for longer than its lease, and all of them
killed at once. The run ends with the facts and numbers of an undisturbed one.
"""

import signal

from dipaco.runs.opening import reading
from tests.support.tiny_run import Fault, facts, report
from tests.support.waiting import until


def test_a_worker_that_comes_back_after_its_lease_records_nothing(dipaco, half, tiny, copy_of):
    """It has done its task, is suspended before it records it, and the run ends without it."""
    run = copy_of(half)
    stops = Fault("before record", "train", number=signal.SIGSTOP)
    short = ("--lease-seconds", 1)
    zombie = dipaco.start("worker", "--run", run.folder, "--name", "zombie", *short, fault=stops)
    until(lambda: zombie.has_fired and zombie.state == "T")
    heir = dipaco("worker", "--run", run.folder, "--name", "heir", *short)
    assert heir.code == 0, heir.err
    assert zombie.state == "T"
    assert facts(run.folder) == facts(tiny.folder)

    zombie.signal(signal.SIGCONT)
    ended = zombie.wait()
    assert ended.code == 0, ended.err
    assert "was given to another worker: its work here is discarded" in ended.err
    assert facts(run.folder) == facts(tiny.folder)
    assert report(run.folder) == report(tiny.folder)


def test_a_run_goes_on_after_all_of_its_processes_were_killed_at_once(dipaco, half, tiny, copy_of):
    """A worker inside a phase, an executor inside an outer step, and the monitor."""
    run = copy_of(half)
    stop = {"number": signal.SIGSTOP}
    roles = {
        "executor": Fault("before save", "outer", **stop),
        "worker": Fault("inside steps", "train", **stop),
        "monitor": Fault("after look", **stop),
    }
    processes = {}
    for role, fault in roles.items():
        name = () if role == "monitor" else ("--name", role)
        processes[role] = dipaco.start(role, "--run", run.folder, *name, fault=fault)
        until(lambda role=role: processes[role].has_fired)
    with reading(run.folder) as opened:
        held = {each.worker: each.task.kind for each in opened.ledger.queue.held()}
    assert held["worker"] == "train"
    assert held["executor"] == "outer"
    for process in processes.values():
        process.signal(signal.SIGKILL)
    codes = {role: process.wait().code for role, process in processes.items()}
    assert set(codes.values()) == {-signal.SIGKILL}, codes

    ended = dipaco("train", run.config, "--run", run.folder)
    assert ended.code == 0, ended.err
    assert facts(run.folder) == facts(tiny.folder)
    assert report(run.folder) == report(tiny.folder)
