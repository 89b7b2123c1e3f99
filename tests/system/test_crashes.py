"""Killed anywhere and started again, a run ends with the facts, digests and numbers of an
undisturbed one.

A run is killed at one named point after the other, each in a process of its own, and goes on from
there each time; that the fault was really met is checked every time. What it has recorded so far
must be a part of what the undisturbed run recorded.
"""

import signal
from pathlib import Path

import pytest

from dipaco.overrides import load_config
from dipaco.receipt import Receipt
from dipaco.runs.opening import create_or_open, database_location_of
from dipaco.store.objects import Objects
from tests.support.tiny_run import Fault, facts, facts_on_server, in_ledger, report

# Points of tools/support/fault_points.py, in the order in which a run meets them. SIGKILL, unless
# it says Ctrl-C.
CTRL_C = {"number": signal.SIGINT}
MET = {  # kind of task -> point and how often it is passed before; ! is Ctrl-C
    "": "before begin",
    "prepare": "after claim, inside reading 100, before save 2, inside record, after record, "
    "inside save!, before record, after record, before save, after record, inside "
    "tokens 100, inside tokens 200!, before manifest, after manifest, before save, "
    "before record, before sweep 3",
    "pretrain": "after claim, inside steps, inside steps!, inside snapshot, inside record 2, "
    "after record",
    "route": "after claim, before save, after record, inside save 3, inside save!, before "
    "record, inside record 5, after record",
    "train": "after claim, inside steps 2, before save, inside snapshot, inside snapshot!, "
    "inside save 2, before record, inside record 3, inside record 3!, after record",
    "outer": "after claim, before save, inside save 2, before record, inside record 2, after "
    "record, after record!",
    "score": "after claim, before save, before save!, before record, after record",
    "evaluate": "after claim, before record, after record",
    "report": "after claim, inside save, inside save!, before record, before sweep",
}


def fault_of(kind, text):
    """`inside save 3!` -> the third passage of that point, by Ctrl-C."""
    where, _, nth = text.rstrip("!").rpartition(" ")
    if not nth.isdigit():
        where, nth = text.rstrip("!"), 1
    return Fault(where, kind or None, nth=int(nth), **(CTRL_C if text.endswith("!") else {}))


FAULTS = [fault_of(kind, each) for kind, of in MET.items() for each in of.split(", ")]
SOME = [
    *(Fault("inside tokens", "prepare", nth=100), Fault("inside snapshot", "pretrain")),
    *(Fault("inside record", "route", nth=5), Fault("inside steps", "train", **CTRL_C)),
    *(Fault("before record", "train"), Fault("inside save", "outer", nth=2)),
    Fault("before sweep", "report", nth=5),
]


def killed_at_each(dipaco, command, folder, faults, undisturbed, facts=facts):
    """Begins a run again and again, each time to one fault; what it has recorded is a part of what
    an undisturbed run has. Then it ends.
    """
    for fault in faults:
        ended = dipaco(*command, "--run", folder, fault=fault)
        assert ended.fired == f"{fault.where} {fault.kind}", ended
        if fault.number == signal.SIGINT:
            assert ended.code == 130, ended
            assert ended.err.endswith("\nInterrupted. The same command goes on from here.\n")
        else:
            assert ended.code == -signal.SIGKILL, ended
        for table, rows in facts(folder).items():
            assert rows <= undisturbed[table], f"{fault} left another {table}"
    ended = dipaco(*command, "--run", folder)
    assert ended.code == 0, ended.err
    assert facts(folder) == undisturbed


@pytest.mark.parametrize("faults", [SOME, pytest.param(FAULTS, marks=pytest.mark.slow)], ids=len)
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(
    dipaco, tiny, tmp_path, faults
):
    folder = tmp_path / "run"
    killed_at_each(dipaco, ("train", tiny.config), folder, faults, facts(tiny.folder))
    assert report(folder) == report(tiny.folder)
    assert_objects_are_whole(folder, names(tiny.folder))
    assert not (folder / "partial").exists()
    assert names(folder) == names(tiny.folder), "something was left behind"


ON_A_SERVER = [
    *(Fault("inside snapshot", "pretrain"), Fault("inside record", "route", nth=5)),
    *(Fault("inside record", "train", nth=2), Fault("inside save", "outer", nth=2)),
    Fault("inside record", "outer", nth=2),
]


@pytest.mark.slow
def test_so_does_one_whose_facts_are_on_a_server(dipaco, tiny, postgresql_server, tmp_path):
    """The worker comes back under its name. What it has sent before it died may be recorded."""
    folder, undisturbed = tmp_path / "run", facts(tiny.folder)
    run, _ = create_or_open(folder, load_config(tiny.config), database=postgresql_server.url)
    run.ledger.close()
    place = database_location_of(folder)
    worker, there = ("worker", "--name", "ana"), lambda _: facts_on_server(*place)
    killed_at_each(dipaco, worker, folder, ON_A_SERVER, undisturbed, there)
    assert report(folder) == report(tiny.folder)
    assert names(folder) == names(tiny.folder), "something was left behind"


def assert_objects_are_whole(folder: Path, kept: set[str]) -> None:
    """Of those that a finished run keeps."""
    objects = Objects(folder)
    receipts = in_ledger(
        folder,
        "SELECT name, digest, num_bytes FROM modules UNION "
        "SELECT state_name, state_digest, state_bytes FROM modules WHERE state_name IS NOT NULL"
        " UNION SELECT name, digest, num_bytes FROM scores",
    )
    receipts = [receipt for receipt in receipts if receipt[0] in kept]
    assert len(receipts) > 20
    for receipt in receipts:
        objects.file(Receipt(*receipt))


def names(folder: Path) -> set[str]:
    """Every object, and every snapshot without the number of its attempt."""
    objects = {str(file.relative_to(folder)) for file in (folder / "objects").rglob("*.*")}
    return objects | {
        str(file.relative_to(folder)).rpartition("-")[0] for file in folder.glob("snapshots/*/*/*")
    }
