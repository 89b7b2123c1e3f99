"""Hostile clients, and a cell that is killed, against servers of the tiny run: smallest forms."""

import json

import pytest

attack_serve = pytest.importorskip("attack_serve", reason="no extra `serve` here")
lose_cell = pytest.importorskip("lose_cell")


@pytest.mark.slow
def test_a_victim_waits_for_no_hostile_client(tiny, command_cache, monkeypatch, capsys):
    """The bound is wide, as the machine may be busy: each of these once took more than tenfold."""
    monkeypatch.setenv("DIPACO_CACHE", str(command_cache))
    monkeypatch.setattr(attack_serve, "MOST_TIMES", 5.0)
    code = attack_serve.main(["--run", str(tiny.folder), "--minutes", "0.5"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, found["problems"]) == (0, [])
    assert found["rows"].keys() == attack_serve.ROWS.keys()
    assert set(found["rows"]["ids"]["answers"]) <= {"400", "left"}


@pytest.mark.slow
def test_no_answer_is_lost_when_a_cell_is_killed_under_load(
    tiny, command_cache, monkeypatch, capsys
):
    """Seven processes: one alone, then a router before four cells."""
    monkeypatch.setenv("DIPACO_CACHE", str(command_cache))
    given = ["--run", str(tiny.folder), "--requests", "90", "--at-once", "8", "--rows", "2"]
    code = lose_cell.main(given)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, found["lost"], found["other_texts"]) == (0, 0, 0)
    assert set(found["answers"]) <= {"whole", "broken off"}


def test_a_row_that_is_not_there_is_a_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit):
        attack_serve.main(["--run", str(tmp_path), "--rows", "schema,luck"])
    assert "there is no luck" in capsys.readouterr().err
