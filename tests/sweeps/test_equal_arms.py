"""Arms that several rows have: which run trains them, and where each row's results come from."""

import dataclasses
from pathlib import Path

import pytest

from dipaco.config import DATA_PARALLEL, DENSE, DENSE_EQUAL_TOKENS, MODULAR
from dipaco.overrides import override
from dipaco.sweeps.equal_arms import SweepRun, arms_of, is_of_row, plan_runs
from dipaco.sweeps.trials import trials_of
from dipaco.topology import grid
from tests.support.tiny_run import TOY

FLAT = override(TOY, ["topology=4"])
QUICK = dataclasses.replace(TOY.outer, momentum=0.5)
ALL = (DENSE, DATA_PARALLEL, DENSE_EQUAL_TOKENS)


def planned(rows, seeds=(0,), existing=(), only=()):
    trials = trials_of("s", rows, seeds, only)
    own = {trial: Path(trial.row, str(trial.seed)) for trial in trials}
    return plan_runs(trials, own, existing)


def begun(plan):
    return [(run.title, run.config.baselines) for run in plan.runs]


def trained_by(plan):
    return {
        str(trial): {arm: run.title for arm, run in sources.items()}
        for trial, sources in plan.sources.items()
    }


def test_a_baseline_does_not_depend_on_what_the_paths_share():
    every = dataclasses.replace(TOY, baselines=ALL)
    there, here = arms_of(every), arms_of(dataclasses.replace(FLAT, baselines=ALL))
    assert there.keys() == {MODULAR, *ALL}
    assert {arm for arm in there if there[arm] == here[arm]} == set(ALL)


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("name=other", set()),
        ("baselines=dense,data_parallel,dense_equal_tokens", set()),
        ("report.link_megabits=5", set()),
        ("retention.snapshots=1", set()),
        ("data.processes=2", set()),
        ("data.slices=3", set()),
        ("routing.overlap=2", {MODULAR}),
        ("inner.freeze_absent_tokens=true", {MODULAR}),
        ("inner.hold_out=0.1", {MODULAR, *ALL}),
        ("outer.momentum=0.5", {MODULAR}),
        ("topology=2x3", {MODULAR, DATA_PARALLEL, DENSE_EQUAL_TOKENS}),
        ("outer.path_share=0.5", {MODULAR, DATA_PARALLEL, DENSE_EQUAL_TOKENS}),
        ("phases=3", {MODULAR, *ALL}),
        ("inner.learning_rate=0.1", {MODULAR, *ALL}),
        ("evaluation.batch_size=8", {MODULAR, *ALL}),
        ("base.steps=6", {MODULAR, *ALL}),
        ("data.held_fraction=0.2", {MODULAR, *ALL}),
        ("seed=3", {MODULAR, *ALL}),
        ("model.d_ff=64", {MODULAR, *ALL}),
    ],
)
def test_an_arm_is_another_where_a_setting_that_it_depends_on_is(text, others):
    every = dataclasses.replace(TOY, baselines=ALL)
    before, after = arms_of(every), arms_of(override(every, [text]))
    assert {arm for arm in before if before[arm] != after[arm]} == others


def test_equal_rows_are_one_run_under_every_seed():
    plan = planned({"a": TOY, "b": FLAT, "c": TOY}, seeds=(0, 1))
    assert [title for title, _ in begun(plan)] == [
        "a, seed 0",
        "b, seed 0",
        "a, seed 1",
        "b, seed 1",
    ]
    assert trained_by(plan)["c, seed 1"] == {
        MODULAR: "a, seed 1", DENSE: "a, seed 1", DENSE_EQUAL_TOKENS: "a, seed 1",
    }  # fmt: skip


def test_a_baseline_is_trained_by_the_first_row_that_has_it():
    rows = {"a": TOY, "b": FLAT, "c": dataclasses.replace(FLAT, phases=3)}
    plan = planned(rows)
    assert begun(plan) == [
        ("a, seed 0", (DENSE, DENSE_EQUAL_TOKENS)),
        ("b, seed 0", ()),
        ("c, seed 0", (DENSE, DENSE_EQUAL_TOKENS)),
    ]
    assert trained_by(plan)["b, seed 0"] == {
        MODULAR: "b, seed 0", DENSE: "a, seed 0", DENSE_EQUAL_TOKENS: "a, seed 0",
    }  # fmt: skip
    assert plan.shared == [
        "`dense` of a, seed 0 is also that of b: trained once",
        "`dense_equal_tokens` of a, seed 0 is also that of b: trained once",
    ]


def test_a_row_alone_trains_its_baselines_and_a_later_one_takes_them():
    rows = {"a": TOY, "b": FLAT}
    alone = planned(rows, only=["b"])
    assert begun(alone) == [("b, seed 0", (DENSE, DENSE_EQUAL_TOKENS))]
    assert begun(planned(rows, existing=alone.runs)) == [
        ("a, seed 0", ()),
        ("b, seed 0", (DENSE, DENSE_EQUAL_TOKENS)),
    ]


def test_a_row_with_one_baseline_more_than_its_equal_is_a_run_that_trains_the_rest():
    more = dataclasses.replace(TOY, baselines=(DENSE, DATA_PARALLEL))
    plan = planned({"a": TOY, "more": more})
    assert begun(plan)[1] == ("more, seed 0", (DATA_PARALLEL,))
    assert trained_by(plan)["more, seed 0"] == {
        MODULAR: "more, seed 0", DENSE: "a, seed 0", DATA_PARALLEL: "more, seed 0",
    }  # fmt: skip


def test_results_are_taken_from_a_finished_run_of_any_name():
    (old,) = planned({"old": TOY}).runs
    plan = planned({"new": TOY}, existing=[old])
    assert plan.runs == []
    assert set(trained_by(plan)["new, seed 0"].values()) == {"old, seed 0"}


def test_a_run_is_of_its_row_if_only_baselines_are_absent():
    """They are still to be trained, or are trained elsewhere."""
    without = dataclasses.replace(TOY, baselines=())
    assert is_of_row(TOY, TOY)
    assert is_of_row(without, TOY)
    assert is_of_row(TOY, without)
    assert is_of_row(TOY, override(without, ["report.link_megabits=5"]))
    assert is_of_row(TOY, override(TOY, ["data.processes=2", "data.slices=3"]))
    assert not is_of_row(without, dataclasses.replace(TOY, phases=3))
    assert not is_of_row(TOY, override(TOY, ["data.length=48"]))


def test_a_baseline_whose_run_is_gone_is_named_and_trained_by_the_row_that_is_redone():
    """The run of `a` failed, and its row was given up; that of `b` had left the baselines to it."""
    first, second = planned({"a": TOY, "b": FLAT}).runs
    plan = planned({"b": FLAT}, existing=[second])
    assert begun(plan) == [("b, seed 0", ())]
    assert [sentence.partition(" is left")[0] for sentence in plan.untrained] == [
        f"`{arm}` of b, seed 0" for arm in (DENSE, DENSE_EQUAL_TOKENS)
    ]
    assert not planned({"a": TOY, "b": FLAT}, existing=[first, second]).untrained
    moved = second._replace(folder=Path("replaced"))  # by `--redo b`
    plan = planned({"b": FLAT}, existing=[moved])
    assert begun(plan) == [("b, seed 0", (DENSE, DENSE_EQUAL_TOKENS))]
    assert not plan.untrained


def test_a_baseline_that_an_earlier_row_lacks_is_taken_from_a_later_one_that_trains_it():
    (_, second) = planned({"a": TOY, "b": FLAT}).runs
    plan = planned({"b": FLAT, "c": dataclasses.replace(TOY, outer=QUICK)}, existing=[second])
    assert begun(plan) == [("b, seed 0", ()), ("c, seed 0", (DENSE, DENSE_EQUAL_TOKENS))]
    assert trained_by(plan)["b, seed 0"][DENSE] == "c, seed 0"
    assert not plan.untrained


def test_grids_of_one_shape_are_equal_however_they_are_written():
    parts = [part for level in TOY.topology.levels for part in level.parts]
    again = dataclasses.replace(TOY, topology=grid(parts, (2, 2)))
    run = SweepRun("a, seed 0", Path("a"), again)
    assert run.arms == arms_of(TOY)
