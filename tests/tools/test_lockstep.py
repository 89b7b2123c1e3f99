"""`tools/lockstep.py`: each side at its best rate, by tokens, by bytes and by hours."""

import dataclasses
import sys

import lockstep
import pytest

from dipaco.sweeps.table import SweepRow
from tests.support.report_costs import COSTS

MEGABYTES = 10**6


def row(name, perplexity, phases, num_bytes, parameters=1_000_000, tune=None):
    costs = {
        "tokens": 1_000_000 * phases,
        "parameters_per_path": parameters,
        "bytes_per_machine": num_bytes,
        "machine_seconds": 2.0 * (100 + 50 * phases),
    }
    return SweepRow(
        name=f"{name} phases {phases}",
        variant="",
        seed=0,
        perplexity=perplexity,
        steps=100 + 50 * phases,
        **COSTS | costs,
        sweep="lockstep",
        levels=[],
        seeds=[0],
        spread=None,
        held_equal=[],
        perplexities=[perplexity],
        tune_perplexities=[perplexity if tune is None else tune],
    )


ROWS = (
    row("data_parallel 4 rate 0.006", 50.0, 2, 900 * MEGABYTES),
    row("data_parallel 4 rate 0.012", 48.0, 2, 900 * MEGABYTES),
    row("data_parallel 4 rate 0.024", 49.0, 2, 900 * MEGABYTES),
    row("data_parallel 4 rate 0.012", 40.0, 4, 1800 * MEGABYTES),
    row("2x2 private rate 0.006", 52.0, 2, 9 * MEGABYTES),
    row("2x2 private rate 0.012", 38.0, 4, 18 * MEGABYTES),
    row("4x4 private rate 0.012", 1.0, 4, 18 * MEGABYTES),
)


@pytest.fixture(scope="module")
def curves():
    ensemble = row("2x2 private rate 0.012", 30.0, 4, 18 * MEGABYTES, parameters=3_000_000)
    bound = dataclasses.replace(ensemble, name=f"{ensemble.name}_best_path", variant="best_path")
    likely = row("2x2 private rate 0.012", 37.0, 4, 18 * MEGABYTES)
    likely = dataclasses.replace(
        likely, name=f"{likely.name}_by_likelihood", variant="by_likelihood"
    )
    return lockstep.curves_of(lockstep.tries([*ROWS, bound, likely], rate=0.0, phases=0), 4)


def test_each_comes_with_its_best_rate_and_only_with_those_of_as_many_machines(curves):
    assert list(curves) == ["data_parallel 4", "2x2 private", "2x2 private_by_likelihood"]
    first, second = curves["data_parallel 4"]
    assert (first.phases, first.perplexity, first.rate) == (2, 48.0, 0.012)
    assert first.rates == (0.006, 0.012, 0.024)
    assert (second.tokens, second.num_bytes) == (4.0, 1800 * MEGABYTES)
    assert [point.perplexity for point in curves["2x2 private_by_likelihood"]] == [37.0]


def test_a_rate_is_chosen_on_tune_documents_whatever_test_says():
    rows = (row("data_parallel 4 rate 0.006", 47.0, 2, 1, tune=60.0), *ROWS[1:3])
    (point,) = lockstep.curves_of(lockstep.tries(rows, rate=0.0, phases=0), 4)["data_parallel 4"]
    assert (point.perplexity, point.rate) == (48.0, 0.012)


def test_rows_that_are_asked_for_are_shown_too():
    bound = dataclasses.replace(ROWS[5], name=f"{ROWS[5].name}_best_path", variant="best_path")
    found = lockstep.tries([*ROWS, bound], rate=0.0, phases=0)
    assert "2x2 private_best_path" in lockstep.curves_of(found, 4, ["best_path"])


def test_hours_are_of_the_steps_and_then_of_the_bytes(curves):
    first, _ = curves["data_parallel 4"]
    assert first.seconds == 400.0
    assert first.hours(20.0) == pytest.approx((400 + 360) / 3600)


def test_the_table_has_a_line_for_every_budget_and_the_gap_to_lock_step(curves):
    lines = lockstep.table(curves, [20.0, 100.0]).splitlines()
    assert lines[0].endswith("| bytes | hours at 20 | hours at 100 |")
    assert lines[2] == "| 2 | 2.0 | data_parallel 4 | 48.00 (0.012) |  | 900 MB | 0.211 | 0.131 |"
    assert lines[3] == "| 2 | 2.0 | 2x2 private | 52.00 (0.006) | +8.3% | 9 MB | 0.112 | 0.111 |"
    assert len(lines) == 2 + 5


def test_who_is_ahead_at_equal_tokens_and_at_equal_hours(curves):
    assert lockstep.crossings(curves)[0] == (
        "- 2x2 private: ahead at 4 phases of data_parallel 4 (+8.3% at 2, -5.0% at 4)"
    )
    first, _ = lockstep.within(curves, 20.0)
    assert first == (
        "- 0.211 hours at 20 Mbit/s: lock-step 48.00 (2 phases); 2x2 private 38.00 (4 phases), "
        "2x2 private_by_likelihood 37.00 (4 phases)"
    )
    at_once, _ = lockstep.within(curves, 1e9)
    assert at_once.endswith("lock-step 48.00 (2 phases); 2x2 private 52.00 (2 phases)")


def test_a_best_rate_at_the_edge_of_those_tried_is_named(curves):
    named = "\n".join(lockstep.untuned(curves))
    assert "data_parallel 4, 2 phases" not in named
    assert "- 2x2 private, 4 phases: best at 0.012, of 0.012" in named


def test_a_file_that_is_no_table_is_refused_with_a_sentence(tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.json"
    other.write_text("{}")
    for file in (tmp_path / "nothere.json", other):
        monkeypatch.setattr(sys, "argv", ["lockstep.py", str(file)])
        with pytest.raises(SystemExit) as ended:
            lockstep.main()
        assert ended.value.code == 2
        assert f"{file} is no table of this version (" in capsys.readouterr().err


def test_rows_without_a_seed_in_common_are_refused_with_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        lockstep.tries([], rate=0.0, phases=0)
    assert ended.value.code == 2
    assert "no seed in common" in capsys.readouterr().err
