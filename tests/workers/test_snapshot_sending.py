"""Snapshots that stay on the disk of the machine that made them, and what its loss costs: phases
that are trained again, to the same bits.
"""

import itertools

import pytest
from support.memory_bucket import Machines

from dipaco.config import MODULAR
from dipaco.runs.reading.status import status_of
from dipaco.workers import claiming, replay
from dipaco.workers.errors import CannotRollBack
from dipaco.workers.hosts import SingleHost
from dipaco.workers.rollback import roll_back
from dipaco.workers.runners import OneHost, SeveralHosts
from dipaco.workers.tasks.train import train
from tests.support.members import join
from tests.workers.conftest import CONFIG, changed, work_until, work_while, worker_of

PHASES = 5


@pytest.fixture
def machines(begin, tmp_path):
    def of(**outer):
        config = changed(
            CONFIG,
            phases=PHASES,
            retention={"snapshots": 1, "send_snapshots_every": 3, "modules": 2},
            outer=outer,
            evaluation={"every_phases": PHASES},
        )
        return Machines(begin(config), tmp_path / "machines")

    return of


def sent(on, path=0):
    """The phases whose snapshots of a path are in the bucket."""
    names = [name for name in on.content if name.startswith(f"snapshots/modular/{path:04d}/")]
    return sorted({int(name.split("/")[3].split("-")[0]) for name in names})


def test_a_path_whose_machine_is_lost_trains_its_phases_since_the_last_sent_one_again(machines):
    """Every third snapshot and the last are sent, and the one before stays for a while."""
    on = machines(codec="int8")
    for phase, expected in enumerate([[], [], [2], [2], [2, 4]], start=1):
        on.work_until(phase)
        assert sent(on, path=3) == expected, phase
        if phase == 2:
            assert status_of(on.of_path[0].run, with_sizes=False)["unsent_snapshots"] == {
                str(path): 2 for path in range(4)
            }
            on.of_path[0] = on.new("another")
    here = on.of_path[3].run.objects.root / "snapshots/modular/0003"
    assert sorted(int(file.name.split("-")[0]) for file in here.iterdir()) == [2, 4]
    again = [refusal.task for refusal in on.run.ledger.redos.refusals()]
    assert again == ["train modular path 0 phase 0", "train modular path 0 phase 1"]
    assert replay.differences(on.executor.run) == []
    assert len(on.run.ledger.facts.trained(MODULAR, 1)) == 4


def test_a_run_goes_back_to_nothing_that_is_left_on_one_disk_alone(machines):
    """This machine read a module before another one deleted it for everybody."""
    on = machines()
    on.work_until(4)
    run, module = on.of_path[0].run, on.run.config.topology.modules[0]
    run.parameters(MODULAR, module, 3)
    name = run.ledger.facts.module(MODULAR, module, 3).parameters.name
    content = on.content.pop(name)
    with pytest.raises(CannotRollBack, match=rf"{module} at phase 3 was deleted .* or is lost"):
        roll_back(run, 3)
    on.content[name] = content
    on.work_until(PHASES)
    assert replay.differences(on.executor.run) == []


def test_a_path_that_never_stays_on_a_machine_comes_to_the_same_bits(machines):
    """What is trained again is sent: each machine does one task, and then it is gone."""
    on = machines()
    on.work_until(2)
    machine_of, numbers = on.machine_of, itertools.count()

    def elsewhere(task):
        is_of_path = task.kind == "train" and task.arm == MODULAR and task.path == 0
        return on.new(f"new-{next(numbers)}") if is_of_path else machine_of(task)

    on.machine_of = elsewhere
    on.work_until(PHASES)
    again = sorted(refusal.task for refusal in on.run.ledger.redos.refusals())
    assert again == [f"train modular path 0 phase {phase}" for phase in (0, 1, 3)]
    assert replay.differences(on.executor.run) == []


def test_what_several_hosts_train_together_is_sent(machines):
    """Each of them goes on from it."""
    on = machines()
    on.work_until(1)
    for is_shared, expected in ((False, []), (True, [1])):
        claim = on.run.ledger.queue.claim("here", ["train"])
        run = on.of_path[claim.task.path].run
        runner = SeveralHosts(run, SingleHost()) if is_shared else OneHost(run)
        train(run, claim, runner, lambda *_: None)
        assert sent(on, claim.task.path) == expected


def phases_of(on, path=0):
    """The phases of a path that were asked for again, in order."""
    again = [refusal.task for refusal in reversed(on.run.ledger.redos.refusals())]
    start = f"train modular path {path} phase "
    return [int(task.removeprefix(start)) for task in again if task.startswith(start)]


@pytest.fixture
def workers(machines, monkeypatch):
    """Two workers on machines of their own; the first has trained two phases of every path."""
    on = machines()
    of_name = {}
    for name in ("ana", "ben"):
        run = on.new(name).run
        join(run.ledger, name)
        of_name[name] = worker_of(run, name)
    work_until(on.run, 2, of_name["ana"])
    homes = [on.run.ledger.meta.get(f"assigned {MODULAR}/{path}") for path in range(4)]
    assert homes == ["ana"] * 4
    monkeypatch.setattr(claiming.Claimer, "_overdue_factor", 0.0)
    return on, of_name["ben"]


def test_a_home_that_hangs_in_a_phase_gets_a_backup_from_the_last_snapshot_that_was_sent(workers):
    on, ben = workers
    hung = on.run.ledger.queue.claim("ana", ["train"])
    assert (hung.task.path, hung.task.phase) == (0, 2)
    work_until(on.run, PHASES, ben)
    assert not on.run.ledger.queue.is_held(hung), "the second one was done first"
    assert phases_of(on)[:2] == [1, 0]
    assert replay.differences(on.executor.run) == []


def test_a_home_that_is_slow_keeps_its_phase_while_a_backup_is_prepared(workers, monkeypatch):
    """By a machine of its kind: on another, phases would be trained again for nothing."""
    on, ben = workers
    slow = on.run.ledger.queue.claim("ana", ["train"])
    with monkeypatch.context() as patch:
        patch.setattr(claiming, "machine", lambda: "another")
        assert not ben.run_once()
        assert on.run.ledger.redos.refusals() == []
    ben = worker_of(ben._run, "ben")  # who looks at once
    for _ in range(3):  # the backup, which finds no snapshot; and its two phases
        assert ben.run_once()
    assert on.run.ledger.queue.is_held(slow)


def test_a_path_is_rescued_though_machines_of_another_kind_have_trained_others(workers):
    """As a laptop has trained the base model. Where they have phases of this very path that were
    not sent, this machine cannot make the same bits.
    """
    on, ben = workers
    hung, other = (on.run.ledger.queue.claim("ana", ["train"]) for _ in range(2))
    for table in ("trained", "path_machines"):
        on.run.ledger._database._connection.execute(
            f"UPDATE {table} SET machine = 'a laptop' WHERE arm = 'base' OR path = ?",
            (other.task.path,),
        )
    work_while(lambda: on.run.ledger.queue.is_held(hung), ben)
    assert phases_of(on, hung.task.path)[:2] == [1, 0]
    ben._claimer._overdue_tasks.make_due()
    ben.run_once()
    assert on.run.ledger.queue.is_held(other)
    assert phases_of(on, other.task.path) == []
