"""A run with rules of its own is killed, and goes on in other processes that import them by name; a
process that cannot says so and changes nothing.
"""

import json
import shutil

import pytest

from dipaco.runs.opening import reading
from dipaco.workers import replay
from tests.support.tiny_run import HOME, Fault, facts, report

EXAMPLES = HOME / "configs" / "examples"
BUILT_IN = {
    "outer_step": "own_outer_step:nesterov",
    "router": "own_router:nearest",
    "path_loss": "own_path_loss:plain",
}
OTHERS = {
    "outer_step": "own_outer_step:adam",
    "router": "own_router:by_direction",
    "path_loss": "own_path_loss:with_z_loss",
}


@pytest.fixture
def theirs(tmp_path):
    """A folder with the files of a user, which may be spoilt."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for file in EXAMPLES.glob("own_*.py"):
        shutil.copy(file, folder)
    return folder


def begin(dipaco, run, rules, theirs, fault):
    """In a process of its own, killed there."""
    killed = dipaco(
        module="tests.support.own_rules_run",
        settings={"run": str(run), "rules": rules},
        fault=fault,
        path=[str(theirs)],
    )
    assert (killed.code, killed.fired) == (-9, f"{fault.where} {fault.kind}"), killed


def modules(folder):
    """Arm, module, phase, name and digest of every module, without the state of its outer step,
    which lies in the file as the rule has it.
    """
    return {row[:5] for row in facts(folder)["modules"]}


@pytest.mark.slow
def test_a_killed_run_goes_on_through_a_worker_that_imports_the_rules(
    dipaco, tiny, theirs, tmp_path
):
    """Under the built-in rules written out: to the digests of a run without rules."""
    run, path = tmp_path / "run", [str(theirs)]
    begin(dipaco, run, BUILT_IN, theirs, Fault("before record", "outer", nth=2))
    ended = dipaco("worker", "--run", run, path=path, fault=Fault("inside steps", "train", nth=2))
    assert (ended.code, ended.fired) == (-9, "inside steps train"), ended
    ended = dipaco("worker", "--run", run, path=path)
    assert ended.code == 0, ended.err
    assert modules(run) == modules(tiny.folder)
    ours, plain = report(run), report(tiny.folder)
    assert [row["perplexity"] for row in ours["rows"]] == [
        row["perplexity"] for row in plain["rows"]
    ]
    assert any("own_outer_step:nesterov" in note for note in ours["notes"])


@pytest.mark.slow
def test_who_cannot_import_a_rule_or_has_another_source_is_told_and_changes_nothing(
    dipaco, config_file, theirs, tmp_path
):
    run = tmp_path / "run"
    begin(dipaco, run, OTHERS, theirs, Fault("after claim", "outer"))
    before = facts(run)

    def refused(*command, path=()):
        ended = dipaco(*command, "--run", run, path=[str(each) for each in path])
        assert ended.code == 2, ended
        assert facts(run) == before
        return ended.err

    launch = ("launch", config_file, "--workers", "1")
    for command in (("worker",), ("train", config_file), launch):
        error = refused(*command)
        assert error.startswith("RuleNotImportable: The outer step of this run is `own_outer_step")
        assert "No module named 'own_outer_step'" in error
        assert "PYTHONPATH" in error
    status = json.loads(dipaco("status", "--run", run, "--json").out)
    assert {kind: rule["name"] for kind, rule in status["rules"].items()} == OTHERS
    assert "own rules: outer step own_outer_step:adam" in dipaco("status", "--run", run).out

    file, source = theirs / "own_path_loss.py", (theirs / "own_path_loss.py").read_text()
    file.write_text(source.replace("WEIGHT = 1e-4", "WEIGHT = 1e-2"))
    error = refused("worker", path=[theirs])
    assert error.startswith("RuleDiffers: The path loss of this run is `own_path_loss:with_z_loss`")
    file.write_text(source)
    ended = dipaco("train", config_file, "--run", run, path=[str(theirs)])
    assert ended.code == 0, ended.err
    assert "path loss `own_path_loss:with_z_loss`" in " ".join(ended.out.split())
    with reading(run) as opened:  # with the rules as this process has them
        assert replay.differences(opened) == []

    # A finished run: who reads it needs the router alone.
    for file in ("own_path_loss.py", "own_outer_step.py"):
        (theirs / file).unlink()
    generate = ("generate", "--run", run, "--prompt", "ba bi bo", "--max-tokens", "4")
    assert dipaco(*generate, path=[str(theirs)]).code == 0
    ended = dipaco(*generate)
    assert (ended.code, "RuleNotImportable: The router" in ended.err) == (2, True), ended.err
    assert dipaco(*generate, "--path", "1").code == 0
    assert dipaco("train", config_file, "--run", run).code == 0  # its table, again
