"""`dipaco status` and `dipaco inspect` on the finished tiny run."""

import json

import numpy as np
import pytest

from dipaco import trees
from dipaco.cli.main import main
from dipaco.config import MODULAR
from dipaco.observe.details import details
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId
from tests.cli.conftest import as_json
from tests.support.tiny_run import Fault, in_ledger


def test_status_names_every_module_with_phase_and_digest(here, tiny, opened):
    status = as_json(here("status", "--run", tiny.folder, "--json"))
    assert status["finished"] is True
    assert set(status["stages"]) == {"prepare", "route", "report"}
    assert set(status["modules"]) == {"early/0000", "early/0001", "late/0000", "late/0001"}
    for name, module in status["modules"].items():
        receipt = opened.ledger.facts.module(MODULAR, ModuleId.parse(name), 2).parameters
        assert module == {"phase": 2, "digest": receipt.digest}
    for path in ("0", "1", "2", "3"):
        at = status["paths"][path]
        assert (at["phase"], at["step"], at["tokens"]) == (2, 6, 6 * 4 * 64)
        assert 0 < at["loss"] < np.log(300) + 1
    assert status["unfinished"] == []
    shown = here("status", "--run", tiny.folder)
    assert shown.out.splitlines()[1].startswith("now: finished")
    assert status["modules"]["late/0001"]["digest"] in shown.out
    status["stages"]["prepare"]["notes"] = []
    assert not any(line.startswith("text:") for line in details(status))
    status["stages"]["prepare"]["notes"] = ["2 documents of 3 are left out"]
    assert "text: 2 documents of 3 are left out" in list(details(status))


def test_status_of_an_unfinished_run_lists_its_tasks(here, half):
    status = as_json(here("status", "--run", half.folder, "--json"))
    assert status["finished"] is False
    assert {task["state"] for task in status["unfinished"]} == {"ready", "claimed"}
    assert status["modules"]["early/0000"]["phase"] == 1


def test_inspect_shows_what_paths_were_given_and_how_modules_moved(here, tiny, opened, tmp_path):
    picture = tmp_path / "inspect.png"
    inspection = as_json(here("inspect", "--run", tiny.folder, "--json", "--picture", picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    shards = opened.stage("route").summary
    assert [at["documents"] for at in inspection["paths"]] == shards["documents"]
    for at in inspection["paths"]:
        assert sum(at["domains"].values()) == at["documents"]
        assert len(at["modules"]) == 2
    assert sum(at["share"] for at in inspection["paths"]) == pytest.approx(1)
    (routing,) = inspection["routings"]
    read = here("inspect", "--run", tiny.folder, "--picture", picture).out
    assert f"test bytes: {routing['test_bytes']:,}\n" in read
    assert (routing["phase"], routing["documents"]) == (0, shards["documents"])

    # Of the last phase, the contributions are still there.
    contributions = {
        module: opened.ledger.facts.contributions(MODULAR, module, 1)
        for module in opened.config.topology.modules
    }
    for module, sent in contributions.items():
        at = inspection["modules"][str(module)]
        assert at["paths"] == [each.path for each in sent]
        assert [step["phase"] for step in at["steps"]] == [1, 2]
        vectors = [
            np.concatenate([leaf.reshape(-1) for _, leaf in trees.flatten(message)])
            for message in (
                load_tree(opened.objects, contribution.message) for contribution in sent
            )
        ]
        norms = [float(np.linalg.norm(vector)) for vector in vectors]
        last = at["steps"][-1]
        assert list(last["norms"].values()) == pytest.approx(norms, rel=1e-5)
        cosine = float(vectors[0] @ vectors[1]) / (norms[0] * norms[1])
        assert last["cosine"] == pytest.approx(cosine, abs=1e-4)
    shown = here("inspect", "--run", tiny.folder, "--picture", picture)
    assert f"path   0  {shards['documents'][0]} documents" in shown.out
    assert "modules early/0000 late/0000\n" in shown.out
    assert f"shards: mean {sum(shards['documents']) / 4:,.0f}, capacity " in shown.out
    assert "of two of its paths: 1 agree, 0 unrelated, -1 opposed" in shown.out
    assert "module late/0001  fan-in 2, phases 1 to 2" in shown.out


def test_inspect_before_routing_is_refused(dipaco, config_file, tmp_path):
    command = ("train", config_file, "--run", tmp_path / "run")
    assert dipaco(*command, fault=Fault("after record", "prepare")).fired
    ended = dipaco("inspect", "--run", tmp_path / "run")
    assert ended.code == 2
    assert "NotAvailable: This run has no stage `route` yet" in ended.err


def test_status_of_a_run_whose_database_is_away_says_so_soon(tmp_path, monkeypatch, capsys):
    """And does not wait a quarter of an hour for it, as a worker does."""
    monkeypatch.setattr("dipaco.cli.status.PATIENCE_SECONDS", 0.01)
    marker = {"database": "postgresql://127.0.0.1:1/runs", "schema": "dipaco_run"}
    (tmp_path / "database").write_text(json.dumps(marker))
    assert main(["status", "--run", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "DatabaseUnreachable: The database postgresql://127.0.0.1:1/runs" in said


def test_status_counts_workers_that_died_all_at_once_with_their_machine_as_silent(
    here, half, copy_of
):
    run = copy_of(half)
    died = "UPDATE workers SET heartbeat = heartbeat - 3600, process_id = 'another-boot - 1 1'"
    number = len(in_ledger(run.folder, f"{died} RETURNING name"))
    shown = here("status", "--run", run.folder).out
    assert f"workers: 0 here, {number} silent, 0 gone" in shown
    assert "silent for 1 h" in shown


def test_a_worker_that_was_killed_on_this_machine_is_gone_at_once(here, half):
    shown = here("status", "--run", half.folder).out.splitlines()
    assert shown[0].endswith("left for one worker; nobody is working")
    assert shown[1].startswith("now: no worker is here")
    assert shown[2].startswith("workers: 0 here, 0 silent, 1 gone")


def test_watch_on_a_terminal_shows_what_fits(here, tiny, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["status", "--run", str(tiny.folder), "--watch"]) == 0
    _, *shown = capsys.readouterr().out.split("\x1b[2J")
    lines = "".join(shown).splitlines()
    assert "finished, 100 %" in lines[0]
    assert len(lines) == 5
    assert max(map(len, lines)) <= 60
    assert lines[-1].endswith("more lines without --watch")
