"""`dipaco clean`: what it says, what it removes, and what is refused."""

import re

import pytest

from tests.cli.conftest import as_json


def files_in(folder):
    return sorted(
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith("ledger")
    )


@pytest.mark.slow
def test_a_run_is_cleaned_after_it_was_said_what_goes(dipaco, tiny, copy_of):
    run = copy_of(tiny)
    before = files_in(run.folder)
    status = as_json(dipaco("status", "--run", run.folder, "--json"))
    assert status["stored"]["snapshots"] > 0
    assert status["is_cleaned"] is False
    planned = dipaco("clean", "--run", run.folder, "--dry-run")
    assert planned.code == 0, planned.err
    kinds = r"^Would be removed: .*B: .* modules, .* snapshots, .* contributions\.$"
    assert re.search(kinds, planned.out, re.M)
    said = as_json(dipaco("clean", "--run", run.folder, "--dry-run", "--json"))
    assert said["removed"].keys() >= {"modules", "snapshots", "contributions"}
    assert said["phase"] == 2
    assert files_in(run.folder) == before

    ended = dipaco("clean", "--run", run.folder)
    assert ended.code == 0, ended.err
    said = planned.out.replace("Would be removed", "Removed").splitlines()
    assert ended.out.splitlines()[0] == said[0]
    assert ended.out.splitlines()[2:] == said[2:]
    assert f"start from {run.folder}@2 and {run.folder}@base" in ended.out
    left = as_json(dipaco("status", "--run", run.folder, "--json"))
    assert "snapshots" not in left["stored"]
    assert left["is_cleaned"] is True
    shown = dipaco("status", "--run", run.folder).out
    assert re.search(r"^stored: .*text, .*, cleaned: it cannot go back or go on$", shown, re.M)

    again = dipaco("clean", "--run", run.folder)
    assert again.out.startswith("There is nothing to remove.")
    assert dipaco("train", run.config, "--run", run.folder).code == 0  # finished, as before
    back = dipaco("rollback", "--run", run.folder, "--phase", 1)
    assert back.code == 2
    assert "CannotRollBack: The run cannot go back to phase 1: `dipaco clean` has" in back.err
    said = dipaco("generate", "--run", run.folder, "--prompt", "c0w1 c0w2", "--max-tokens", 2)
    assert said.code == 0, said.err


def test_a_run_that_is_not_finished_is_refused(here, half, copy_of):
    run = copy_of(half)
    before = files_in(run.folder)
    ended = here("clean", "--run", run.folder)
    assert ended.code == 2
    assert "CannotClean: The run cannot be cleaned: " in ended.err
    assert ended.err.rstrip().endswith("Nothing was removed.")
    assert files_in(run.folder) == before
