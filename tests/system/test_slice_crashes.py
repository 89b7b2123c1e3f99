"""Text and features in slices, killed anywhere: the run ends with the facts of one without any."""

import signal
from pathlib import Path

import pytest

from tests.support.tiny_run import Fault, facts, report
from tests.system.test_crashes import assert_objects_are_whole, names

FAULTS = [
    Fault("before save", "prepare"),  # of the first slice that is read
    Fault("inside save", "prepare", nth=2),
    Fault("inside record", "prepare"),
    Fault("after record", "prepare"),
    Fault("before save", "prepare", nth=4),  # of what the merge decides
    Fault("inside save", "prepare", nth=3, number=signal.SIGINT),  # of the tokenizer
    Fault("before record", "prepare"),
    Fault("before save", "prepare"),  # of the tokens of a slice
    Fault("inside record", "prepare", nth=2),
    Fault("inside tokens", "prepare", nth=100),  # of the corpus
    Fault("before manifest", "prepare"),
    Fault("before record", "prepare"),
    Fault("before sweep", "prepare", nth=3),
    Fault("after claim", "route"),
    Fault("before save", "route"),  # of features
    Fault("inside record", "route", nth=2),
    Fault("before record", "route", nth=2),
    Fault("after record", "route"),
    Fault("before sweep", "route"),
]
SOME = [FAULTS[1], FAULTS[5], FAULTS[8], FAULTS[12], FAULTS[15]]


def facts_but_of_slices(folder: Path) -> dict[str, set[tuple]]:
    rows = facts(folder)
    rows["tasks"] = {
        row for row in rows["tasks"] if row[0] not in ("prepare", "route") or not row[1]
    }
    rows["stages"] = {row for row in rows["stages"] if " " not in row[0]}
    return rows


@pytest.mark.slow
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
@pytest.mark.parametrize("faults", [SOME, FAULTS], ids=len)
def test_slices_that_are_killed_again_and_again_end_like_one_task(dipaco, tiny, tmp_path, faults):
    folder = tmp_path / "run"
    command = ["train", tiny.config, "--run", folder, "--set", "data.slices=2"]
    alone = facts(tiny.folder)
    for fault in faults:
        ended = dipaco(*command, fault=fault)
        assert ended.fired == f"{fault.where} {fault.kind}", (fault, ended)
        for table, rows in facts_but_of_slices(folder).items():
            assert rows <= alone[table], f"{fault} left another {table}"
    ended = dipaco(*command)
    assert ended.code == 0, ended.err
    assert facts_but_of_slices(folder) == alone
    assert report(folder) == report(tiny.folder)
    assert_objects_are_whole(folder, names(tiny.folder))
    (tokenizer,) = names(folder) - names(tiny.folder)
    assert tokenizer.startswith("objects/tokenizers/")
    assert not list(folder.glob("partial/*"))
