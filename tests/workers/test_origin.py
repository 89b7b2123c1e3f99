"""What a run that starts from another takes from there: its text, its costs, its perplexity."""

import dataclasses

import pytest
from support.smallest_run import EVERYTHING

from dipaco.config import DENSE, MODULAR, EvaluationSettings
from dipaco.runs.opening import create_or_open, reading
from dipaco.runs.reading.report import make_report
from dipaco.runs.run import Run
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Level, Topology
from dipaco.workers import replay
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import CannotStartFrom, TextChanged
from dipaco.workers.execution import execute
from dipaco.workers.origin import _check_model, from_run
from dipaco.workers.origin_router import notes_on_router
from tests.workers.conftest import CONFIG, changed, finish, never

CONFIG = dataclasses.replace(CONFIG, evaluation=EvaluationSettings(every_phases=1))
BASE_STEPS, STEPS = CONFIG.base.steps, CONFIG.inner.steps  # of a phase


def test_another_text_than_that_of_the_base_model_is_refused(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "corpus").symlink_to(corpus)
    given = {"origin": "--from there@base", "corpus": "0" * 32}
    run, _ = create_or_open(tmp_path / "run", CONFIG, given)
    claim = run.ledger.queue.claim("test")
    assert claim is not None
    with pytest.raises(TextChanged, match="`--from there@base` was trained on"):
        execute(run, claim, Callbacks(), never)
    run.ledger.close()


def test_types_and_kernels_of_computing_may_differ_and_sizes_may_not():
    rounded = dataclasses.replace(
        CONFIG.model, compute_dtype="bfloat16", result_dtype="bfloat16", attention_kernel="plain"
    )
    _check_model("there", rounded, CONFIG.model)
    with pytest.raises(CannotStartFrom, match=r"`model\.d_ff` is 16 there and 24 here"):
        _check_model("there", dataclasses.replace(CONFIG.model, d_ff=16), CONFIG.model)


@pytest.fixture(scope="module")
def source(begun):
    """The folder of a finished run."""
    return begun(CONFIG, "the end")


def report_of(begin, config, start, name="run"):
    """The folder of a run that starts from there, `DIR@PHASE`, and its report."""
    run = begin(config, name=name, start=start)
    finish(run)
    return run.layout.root, make_report(run)


def row_of(report, name):
    (row,) = (row for row in report.rows if row.name == name)
    return row


def test_the_steps_of_the_source_count_and_the_curve_begins_where_training_began(source, begin):
    with reading(source) as run:
        there = make_report(run)
    # At this rate nothing moves: the first point is what this run would have measured itself.
    still = changed(CONFIG, phases=1, inner={"learning_rate": 1e-12}, baselines=(DENSE,))
    new, report = report_of(begin, still, f"{source}@2")
    first, last = report.curves[MODULAR]
    assert first == there.curves[MODULAR][2] == (BASE_STEPS + 2 * STEPS, first[1])
    assert last == (BASE_STEPS + 3 * STEPS, pytest.approx(first[1], rel=1e-6))
    assert report.base == there.base
    assert report.curves[DENSE][0] == there.curves[MODULAR][0]  # the base model, for the dense one
    row, all_of_it = row_of(report, MODULAR), row_of(there, MODULAR)
    assert (row.steps, row.steps_elsewhere) == (BASE_STEPS + 3 * STEPS, 2 * STEPS)
    assert (row.tokens, row.flops) == (all_of_it.tokens, all_of_it.flops)
    assert row.bytes_per_machine == pytest.approx(all_of_it.bytes_per_machine, abs=1)
    assert row.machine_seconds > 0
    dense = row_of(report, DENSE)
    assert (dense.steps, dense.steps_elsewhere) == (BASE_STEPS + STEPS, 0)
    (note,) = (note for note in report.notes if f"{source}@2" in note and "steps" in note)
    assert note.startswith(
        f"modular has taken {BASE_STEPS + 3 * STEPS} steps, of these {2 * STEPS} as modules of "
        f"{source}@2 and {BASE_STEPS} as its base model"
    )
    _, third = report_of(begin, still, f"{new}@1", "third")  # from a run that itself began so
    assert row_of(third, MODULAR).steps == BASE_STEPS + 4 * STEPS
    assert third.curves[MODULAR][0] == last


def test_another_codec_than_the_sources_begins_without_a_residual(source, begin):
    """Inner states are fresh, and so is what a path owes: equal to Algorithm 1 from there."""
    run = begin(changed(CONFIG, phases=2, outer={"codec": "int2"}), start=f"{source}@1")
    finish(run)
    assert replay.differences(run) == []


def test_what_a_run_was_given_stays_while_its_own_modules_are_deleted(source, begin):
    """A path whose snapshot is lost goes back to them."""
    config = dataclasses.replace(
        CONFIG,
        evaluation=EvaluationSettings(every_phases=CONFIG.phases),
        retention=RetentionSettings(modules=2, snapshots=1, contributions=2),
    )
    run = begin(config, start=f"{source}@1")
    finish(run)
    gone = {
        phase
        for phase in range(config.phases + 1)
        for receipt in run.ledger.facts.receipts_at(MODULAR, phase).values()
        if not (run.layout.root / receipt.name).exists()
    }
    assert gone == {1}
    for name, *_ in (run.given("base"), *run.given("modules").values()):
        assert (run.layout.root / name).exists()


ONE_MODEL = Topology(levels=(Level(name="all", parts=EVERYTHING),))


@pytest.mark.parametrize(
    "other",
    [{"topology": ONE_MODEL}, {"evaluation": EvaluationSettings(every_phases=1, batch_size=3)}],
    ids=["another topology", "another evaluation"],
)
def test_where_the_first_perplexity_is_not_known_the_curve_begins_with_the_next(
    source, begin, other
):
    _, report = report_of(begin, dataclasses.replace(CONFIG, phases=1, **other), f"{source}@2")
    assert [steps for steps, _ in report.curves[MODULAR]] == [BASE_STEPS + 3 * STEPS]
    assert report.base is None, "no arm starts from it"


@pytest.mark.parametrize("kind", ["random", "small_models"])
def test_modules_whose_shards_would_be_made_otherwise_are_refused(source, tmp_path, kind):
    """Their router comes with them, and neither chance nor small models would be asked."""
    config = changed(CONFIG, routing={"kind": kind})
    with pytest.raises(CannotStartFrom, match=f"`routing.kind` is {CONFIG.routing.kind} there and"):
        from_run(config, tmp_path / "new", f"{source}@2")


def test_settings_of_a_fit_that_does_not_happen_are_named(source, tmp_path):
    config = changed(CONFIG, routing={"capacity": 3.0, "prior": 0.5})
    given = from_run(config, tmp_path / "new", f"{source}@2")
    (note,) = given["notes"]
    assert "these settings of its fit do not count here: `routing.capacity`" in note
    assert "prior" not in note
    assert from_run(CONFIG, tmp_path / "same", f"{source}@2")["notes"] == []


def test_shards_by_likelihood_do_not_come_along_and_that_is_said(source, monkeypatch):
    config = changed(CONFIG, routing={"rule": "likelihood", "alternations": (1,)})
    monkeypatch.setattr(Run, "config", config)
    with reading(source) as other:
        (note,) = notes_on_router("DIR@2", other, other.config, 2)
        assert "had been shared out by likelihood" in note
        assert notes_on_router("DIR@0", other, other.config, 0) == []


def test_a_router_that_came_with_modules_is_not_handed_on_as_fitted_from_the_settings(
    source, begin, tmp_path
):
    config = changed(CONFIG, routing={"capacity": 3.0})
    run = begin(config, start=f"{source}@2")
    finish(run)
    again = from_run(config, tmp_path / "again", f"{run.address}@base")
    assert "router" not in again
