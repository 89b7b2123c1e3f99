"""`tools/size_factor.py`: the dense model that would be as good, by seed, at the best rates."""

import dataclasses
import sys

import pytest
import size_factor

from dipaco.sweeps.table import SweepTable
from tests.tools.test_lockstep import row

SEEDS = (0, 1, 2)


def rated(name, perplexities, parameters, tune=None):
    one = row("x", perplexities[0], 1, 0, parameters)
    return dataclasses.replace(
        one,
        name=name,
        parameters_total=parameters,
        seeds=list(SEEDS[: len(perplexities)]),
        perplexities=list(perplexities),
        tune_perplexities=list(tune or perplexities),
    )


def dense(times, rate, worse=1.0):
    """Perplexity falls with the root of the size."""
    values = [worse * (50 + seed) * times**-0.5 for seed in SEEDS]
    return rated(f"dense {times}x rate {rate:g}", values, 1000 * times)


ROWS = [
    *(dense(times, rate, worse) for times in (1, 4, 9) for rate, worse in ((0.1, 1), (0.2, 1.3))),
    rated("4x4 private rate 0.1", [50 / 2.5, 51 / 2.4, 52 / 2.6], 1000),
    rated("4x4 private rate 0.2", [40, 40, 40], 1000),
    rated("8x8 private rate 0.1", [50 / 4], 1000),
]


TABLE = SweepTable(
    sweep="s",
    reference=ROWS[0].name,
    rows=ROWS,
    orderings=[],
    runs=[],
    missing=[],
    apart=[],
    notes=[],
)


def test_a_rate_is_chosen_on_tune_documents_whatever_test_says():
    seen_on_test = rated("dense 1x rate 0.3", [1, 1, 1], 1000, tune=[90, 90, 90])
    first, *_ = size_factor.contenders(dataclasses.replace(TABLE, rows=[seen_on_test, *ROWS]))
    assert (first.name, first.rate) == ("dense 1x", 0.1)


def test_a_factor_is_the_size_of_the_dense_model_that_is_as_good_under_the_same_seed():
    each = size_factor.contenders(TABLE)
    models = [one for one in each if one.name.startswith("dense")]
    assert [(one.name, one.rate, one.paths) for one in each] == [
        *((f"dense {times}x", 0.1, 1) for times in (1, 4, 9)),
        ("4x4 private", 0.1, 16),
        ("8x8 private", 0.1, 64),
    ]
    of_16, of_64 = (size_factor.factors(one, models) for one in each[-2:])
    assert of_16 == pytest.approx([2.5**2, 2.4**2, 2.6**2])
    assert of_64 == pytest.approx([16])  # beyond the largest, along its line


def test_the_table_and_the_picture(tmp_path, monkeypatch, capsys):
    table, picture = tmp_path / "table.json", tmp_path / "picture.png"
    table.write_bytes(TABLE.to_json())
    monkeypatch.setattr(sys, "argv", ["size_factor", str(table), "--picture", str(picture)])
    size_factor.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| dense 1x",
        "| dense 4x",
        "| dense 9x",
        "| 4x4 private",
        "| 8x8 private",
    ]
    assert "6.3 ± 1.2 x" in lines[-2]
    assert picture.stat().st_size > 10_000
