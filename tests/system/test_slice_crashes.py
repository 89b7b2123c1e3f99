"""Text and features in two slices, killed anywhere: the facts are those of a run with one."""

from pathlib import Path

import pytest

from tests.support.tiny_run import Fault, facts, report
from tests.system.test_crashes import assert_objects_are_whole, killed_at_each, names

FAULTS = [
    Fault("inside save", "prepare", nth=2),  # the table of the first slice
    Fault("after record", "prepare"),
    Fault("before save", "prepare", nth=4),  # what stays of the slices
    Fault("inside record", "prepare", nth=2),
    Fault("before manifest", "prepare"),
    Fault("before sweep", "prepare", nth=3),
    Fault("before save", "route", nth=2),  # the features of the second slice
]


def facts_but_of_slices(folder: Path) -> dict[str, set[tuple]]:
    rows = facts(folder)
    rows["tasks"] = {
        row for row in rows["tasks"] if row[0] not in ("prepare", "route") or not row[1]
    }
    rows["stages"] = {row for row in rows["stages"] if " " not in row[0]}
    return rows


@pytest.mark.slow
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
def test_slices_that_are_killed_again_and_again_end_like_one_slice(dipaco, tiny, tmp_path):
    folder = tmp_path / "run"
    command = ("train", tiny.config, "--set", "data.slices=2")
    alone = facts_but_of_slices(tiny.folder)
    killed_at_each(dipaco, command, folder, FAULTS, alone, facts_but_of_slices)
    assert report(folder) == report(tiny.folder)
    assert_objects_are_whole(folder, names(tiny.folder))
    assert names(folder) == names(tiny.folder), "something was left behind"
    assert not list(folder.glob("partial/*"))
