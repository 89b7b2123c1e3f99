"""`tools/same_bits.py`: a worker is really killed, and a module that differs is counted."""

import json
import sys
from pathlib import Path

import pytest
import same_bits

TOY = Path(__file__).parents[2] / "configs" / "toy.py"
pytestmark = pytest.mark.slow


def answer(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["same_bits.py", str(TOY), "--workers", "2", *words])
    same_bits.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_killed_workers_end_with_the_bits_of_an_undisturbed_process(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "--set", "inner.steps=20", "--kill-after", "1")
    assert found["kills"] == 1
    assert found["modules"] == 4 * 3
    assert set(found["different"].values()) == {0}


def test_modules_that_differ_are_counted(monkeypatch, capsys):
    def begin(options, run, words, environment, begun=same_bits.begin):
        options.set = [] if run.name == "first" else ["seed=1"]
        return begun(options, run, words, environment)

    monkeypatch.setattr(same_bits, "begin", begin)
    found = answer(monkeypatch, capsys, "--kill-after", "1")
    assert found["different"]["second and killed"] == 0
    assert found["different"]["first and second"] == found["modules"]
