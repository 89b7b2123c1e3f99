"""What `dipaco launch` looks at before it starts a process: none is started here."""

import pytest

from dipaco.cli.main import main
from dipaco.control.process_id import ProcessId
from dipaco.errors import NOT_NOW
from dipaco.launch import devices, supervisor
from dipaco.launch.devices import VisibleDevices
from dipaco.runs.opening import reading

TWO = ("--set", "mesh.data=2")


@pytest.fixture
def launch(config_file, tmp_path, monkeypatch, capsys):
    """`launch(...)` -> (its exit code, what it said), and `launch.started` of each the workers. A
    launch that begins ends as if the run was drained.
    """
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")

    def supervise(opened, engine, groups, name, **_):
        start.started.append([group.count for group in groups])
        return False

    monkeypatch.setattr(supervisor, "supervise", supervise)

    def start(*more):
        code = main(["launch", str(config_file), "--run", str(start.folder), *more])
        said = capsys.readouterr()
        return code, said.out + said.err

    start.started, start.folder = [], tmp_path / "run"
    return start


def test_only_a_new_run_needs_workers_that_can_train_it(launch):
    """Others do what else is due, and evaluators take one device."""
    few = ("--devices-per-worker", "1", *TWO)
    code, said = launch("--workers", "1", *few)
    assert code == 2
    assert "MeshUnfit: Each worker is given 1 devices" in said
    assert not launch.folder.exists()
    code, said = launch("--workers", "0", "--evaluators", "1", *few)
    assert code == NOT_NOW, said
    code, said = launch("--workers", "1", *few)
    assert code == NOT_NOW, said
    assert launch.started == [[0, 0, 1, 0], [1, 0, 0, 0]]


def test_a_tpu_chip_may_be_two_devices(launch, monkeypatch):
    monkeypatch.setattr(devices, "visible_devices", lambda: VisibleDevices("tpu", ("0",)))
    code, said = launch("--workers", "1", "--devices-per-worker", "1", *TWO)
    assert code == NOT_NOW, said


def test_scale_without_a_launcher_records_nothing_and_says_which_there_were(
    launch, here, half, monkeypatch
):
    """A launcher that is started later follows no older request."""
    ended = here("scale", "--run", half.folder, "--workers", 2)
    assert (ended.code, "these were ever started: none." in ended.err) == (2, True)
    launch("--workers", "0", "--name", "lab")
    run = ("--run", launch.folder, "--workers", 2)
    ended = here("scale", *run, "--launcher", "lba")
    assert (ended.code, "these were ever started: lab." in ended.err) == (2, True)
    ended = here("scale", *run)
    assert (ended.code, ended.out) == (
        0,
        "Recorded. Workers wanted of each launcher of the run: 2.\n",
    )
    monkeypatch.setattr(ProcessId, "is_over", lambda process_id: True)
    ended = here("scale", *run)
    assert ended.out.endswith("None is at work now: lab follows when it is started again.\n")


def test_a_launcher_whose_name_is_taken_leaves_the_run_as_it_was(launch, monkeypatch):
    code, said = launch("--workers", "0", "--name", "lab")
    assert code == NOT_NOW, said
    other = ProcessId.here()._replace(pid=1)
    with reading(launch.folder) as run:
        before = run.ledger.meta.launcher_process("lab")
        assert run.ledger.meta.take_launcher_name("lab", str(other), after=before)
        claim = run.ledger.queue.claim("w")
        run.ledger.failures.fail(claim, "its cause", is_lasting=True)
        config = run.ledger.meta.get("config")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessId, "is_over", lambda process_id: process_id != other)
        again = ("--workers", "0", "--name", "lab", "--set", "report.link_megabits=77")
        code, said = launch(*again)
    assert code == 2
    assert "LauncherNameTaken: A launcher named `lab` is at work" in said
    assert "tried again" not in said
    with reading(launch.folder) as run:
        assert [failure.state for failure in run.ledger.failures.list()] == ["failed"]
        assert run.ledger.meta.get("config") == config
    assert len(launch.started) == 1
