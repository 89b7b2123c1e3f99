"""What a finished run keeps, and what is left when it was cleaned, killed anywhere or not."""

import dataclasses
import shutil

import pytest
from support.smallest_run import SHARINGS

from dipaco.config import DENSE, MODULAR, EvaluationSettings
from dipaco.control.errors import NoSuchRelease
from dipaco.control.keeping.cleaning import Cleanings
from dipaco.errors import RunBusy
from dipaco.runs.folder_lock import folder_lock
from dipaco.runs.opening import open_run
from dipaco.runs.reading.inspection import inspection_of
from dipaco.runs.reading.report import make_report
from dipaco.runs.reading.sizes import sizes_of
from dipaco.runs.reading.status import status_of
from dipaco.schedule.plan import BASE
from dipaco.store.address import Address
from dipaco.store.objects import Objects
from dipaco.store.retention import RetentionSettings
from dipaco.store.tensors import load_tree
from dipaco.topology import Topology
from dipaco.workers import keeping
from dipaco.workers.cleaning import clean
from dipaco.workers.errors import CannotRollBack, CannotStartFrom
from dipaco.workers.keeping import clean_up, collect_all
from dipaco.workers.origin import from_run
from dipaco.workers.rollback import roll_back
from dipaco.workers.scoring import document_scores
from tests.workers.conftest import CONFIG, worker_of
from tests.workers.test_quorum import late_ones, with_dice, with_quorum, work_with_late_paths

CONFIG = dataclasses.replace(
    CONFIG,
    evaluation=EvaluationSettings(every_phases=2),
    retention=RetentionSettings(snapshots=2, modules=4),
    baselines=(DENSE,),
)
ARMS = ((BASE, 2), (DENSE, 3), (MODULAR, 3))


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def trained(begun):
    """The folder of a finished run; never write to it."""
    return begun(CONFIG, "the end")


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.fixture
def opened(folder):
    run = open_run(folder)
    yield run
    run.ledger.close()


def files_in(folder):
    """Names of everything but the ledger."""
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return {name for name in files if not name.startswith("ledger")}


def snapshots_of(run):
    places = run.layout.root.glob("snapshots/*/*/*")
    return sorted(place.relative_to(run.layout.root).as_posix() for place in places)


def what_is_read_of(run):
    """What the report, `inspect`, `generate` and a sweep's table are made from, read."""
    for arm, phase in ARMS:
        release = run.ledger.facts.release(arm)
        assert release.phase == phase
        for path in range(len(release.paths)):
            assert run.path_of(release, path)
    assert run.base_parts()
    assert run.router_of(run.routing_of(MODULAR, 3)) is not None
    scores = {arm: repr(document_scores(run, arm, phase)) for arm, phase in ARMS[1:]}
    return make_report(run).to_json(), inspection_of(run), scores


def test_a_finished_run_keeps_what_is_released_started_from_and_gone_on_with(opened):
    facts, objects = opened.ledger.facts, opened.objects
    assert [name.split("/")[1:3] for name in snapshots_of(opened)] == [
        ["dense", "0000"], *(["modular", f"{path:04d}"] for path in range(4))
    ]  # fmt: skip
    for path in range(4):
        assert objects.folder(facts.snapshot(MODULAR, path, 2).receipt.name)
    assert not list((opened.layout.root / "objects/messages").rglob("*.safetensors"))
    for phase in range(4):
        for module, receipt in facts.receipts_at(MODULAR, phase).items():
            assert load_tree(objects, receipt), module
    for module in opened.config.topology.modules:
        assert objects.file(facts.module(MODULAR, module, 3).outer_state).exists()
        assert not objects.place_of(facts.module(MODULAR, module, 2).outer_state.name).exists()
    for arm, phase in (*ARMS, (DENSE, 2), (MODULAR, 2)):
        for receipt in facts.release(arm, phase).objects.values():
            assert objects.file(receipt).exists()
    (module,) = opened.plan.base.topology.modules
    assert not objects.place_of(facts.module(BASE, module, 1).parameters.name).exists()
    assert not objects.place_of(facts.module(DENSE, module, 1).parameters.name).exists()
    before = files_in(opened.layout.root)
    clean_up(opened, is_first=True)  # as the same command does that is given again
    assert files_in(opened.layout.root) == before


def test_a_finished_run_that_goes_back_while_it_is_collected_loses_nothing_more(
    opened, monkeypatch
):
    before = files_in(opened.layout.root)
    unnamed = [
        opened.objects.write_bytes("messages/modular/early/0000/000001", "bin", bytes([at])).name
        for at in range(3)
    ]
    finished = [True]

    def delete_first(self, name):
        deleted(self, name)
        finished[0] = name not in unnamed

    deleted = Objects.delete
    monkeypatch.setattr(keeping, "BATCH", 1)
    monkeypatch.setattr(Objects, "delete", delete_first)
    monkeypatch.setattr(opened.ledger.queue, "is_finished", lambda: finished[0])
    collect_all(opened)
    assert files_in(opened.layout.root) == before | set(sorted(unnamed)[1:])


def test_a_finished_run_with_late_contributions_goes_back_to_the_same_losses(begin):
    diloco = Topology(levels=SHARINGS["diloco"])
    run = begin(with_quorum(topology=diloco, retention={"snapshots": 3}))
    work_with_late_paths(run, with_dice)
    late = [each for each in late_ones(run) if each.phase == 1]
    assert late, "no path was late for the phase before the last"
    losses = run.ledger.progress.losses(MODULAR)
    roll_back(run, 2)
    while run.ledger.queue.unfinished():
        run.ledger.quorums.end_grace(run.plan)
        assert worker_of(run).run_once()
    assert run.ledger.progress.losses(MODULAR) == losses


def test_a_cleaned_run_is_read_as_before_and_neither_goes_back_nor_on(folder, tmp_path):
    with_all = open_run(folder)
    before, there = what_is_read_of(with_all), files_in(folder)
    sizes = sizes_of(with_all)
    with_all.ledger.close()
    planned = clean(Address(folder), is_dry=True)
    assert files_in(folder) == there
    done = clean(Address(folder))
    assert planned.removed == done.removed
    assert {*done.removed} == {"modules", "outer_states", "snapshots"}
    assert done.releases == dict(ARMS)
    run = open_run(folder)
    assert what_is_read_of(run) == before
    for arm, phase in ((DENSE, 2), (MODULAR, 2)):
        with pytest.raises(NoSuchRelease):
            run.ledger.facts.release(arm, phase)
    with pytest.raises(CannotRollBack, match="`dipaco clean` has removed what it would go on from"):
        roll_back(run, 3)
    config = dataclasses.replace(CONFIG, phases=1)
    with pytest.raises(CannotStartFrom, match=f"removed its modules .*; {folder}@3 and .*@base "):
        from_run(config, tmp_path / "other", f"{folder}@1")
    for at in ("3", "base"):
        assert from_run(config, tmp_path / f"other{at}", f"{folder}@{at}")["base"]
    stored = status_of(run)["stored"]
    for kind, num_bytes in done.removed.items():
        assert sizes[kind] - num_bytes == stored.get(kind, 0), kind
    on_disk = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    assert sum(stored.values()) == on_disk
    assert status_of(run)["is_cleaned"]
    clean_up(run, is_first=True)
    assert what_is_read_of(run) == before
    run.ledger.close()


def test_a_cleaning_that_is_killed_anywhere_leaves_a_run_that_is_read_and_is_done_again(
    trained, tmp_path, monkeypatch
):
    undisturbed = shutil.copytree(trained, tmp_path / "undisturbed")
    clean(Address(undisturbed))
    delete, count = Objects.delete, len(files_in(trained))

    def killed_at(number, *, is_half):
        calls = iter(range(count))

        def delete_until(self, name):
            if next(calls) == number:
                if is_half and name.startswith("snapshots"):  # in the middle of a folder
                    next(file for file in self.place_of(name).rglob("*") if file.is_file()).unlink()
                raise Killed
            delete(self, name)

        return delete_until

    for number in range(0, count, 5):
        folder = shutil.copytree(trained, tmp_path / str(number))
        before = open_run(folder)
        expected = what_is_read_of(before)
        before.ledger.close()
        monkeypatch.setattr(Objects, "delete", killed_at(number, is_half=number % 2))
        try:
            clean(Address(folder))
        except Killed:
            run = open_run(folder)
            assert what_is_read_of(run) == expected
            assert status_of(run)["is_cleaned"]
            with pytest.raises(CannotRollBack):
                roll_back(run, 3)
            run.ledger.close()
        else:
            assert number, "the first deletion was not reached"
            break
        monkeypatch.setattr(Objects, "delete", delete)
        clean(Address(folder))
        assert files_in(folder) == files_in(undisturbed)
    else:
        pytest.fail("it never came to its end")


def test_one_killed_before_it_is_recorded_has_changed_nothing(folder, monkeypatch):
    def killed(*_):
        raise Killed

    before = files_in(folder)
    monkeypatch.setattr(Cleanings, "record", killed)
    with pytest.raises(Killed):
        clean(Address(folder))
    assert files_in(folder) == before | {"run.lock"}
    run = open_run(folder)
    assert run.ledger.facts.release(MODULAR, 2)
    assert not status_of(run)["is_cleaned"]
    run.ledger.close()


def test_a_run_that_is_worked_on_is_refused(folder):
    before = files_in(folder)
    with folder_lock(folder) as lock:
        lock.share()
        with pytest.raises(RunBusy):
            clean(Address(folder))
    assert files_in(folder) == before | {"run.lock"}
