"""A run whose router is a small language model for each path, fitted by balanced EM."""

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.data.pack import load_plan
from dipaco.data.windows import first_tokens
from dipaco.model.config import flops_per_token
from dipaco.model.lm import forward
from dipaco.runs import small_models
from dipaco.runs.opening import reading
from dipaco.runs.reading.report import make_report
from dipaco.runs.routing import paths_of_prefixes
from dipaco.runs.small_models import small_config
from dipaco.serving.dispatch import Dispatcher, dispatch
from dipaco.serving.warm_up import WarmUp
from dipaco.store.tensors import load_tree
from dipaco.workers.errors import CannotStartFrom
from dipaco.workers.origin import from_run
from tests.workers.conftest import CONFIG, changed, finish, work_while, worker_of

PREFIX = CONFIG.data.prefix_tokens
RUN = changed(
    CONFIG,
    phases=1,
    evaluation={"every_phases": 1},
    routing={"kind": "small_models", "capacity": 1.0, "floor": 1.0},
)


@pytest.fixture(autouse=True)
def _quick_fit(monkeypatch):
    fit = small_models.FIT._replace(rounds=2, steps=15, batch_size=8, d_model=16)
    monkeypatch.setattr(small_models, "FIT", fit)


@pytest.mark.slow
def test_documents_and_prompts_go_to_the_small_model_that_finds_them_likeliest(begin):
    run = begin(RUN)
    finish(run)
    routing, release = run.stage("route"), run.ledger.facts.release(MODULAR)
    models = load_tree(run.objects, routing.artifacts["small_models"])
    assert "small_models" in release.companions
    model = small_config(RUN.model, PREFIX)

    held = load_tree(run.objects, routing.artifacts["held"])
    tokens, lengths = first_tokens(run.corpus, held["documents"], PREFIX)
    score = np.zeros((len(tokens), 4))
    for path in range(4):
        logits = np.asarray(forward(model, models[f"{path:06d}"], tokens)[0], np.float64)
        log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
        next_ = np.take_along_axis(log_p[:, :-1], tokens[:, 1:, None], axis=2)[:, :, 0]
        score[:, path] = np.where(np.arange(1, PREFIX) < lengths[:, None], next_, 0).sum(axis=1)
    np.testing.assert_array_equal(held["paths"], score.argmax(axis=1))
    routed = paths_of_prefixes(run, release, RUN.routing, tokens, lengths)
    np.testing.assert_array_equal(routed, held["paths"])
    dispatcher = Dispatcher(run, release)
    WarmUp().run(dispatcher.programs())
    for row, length, path in zip(tokens, lengths, held["paths"], strict=True):
        assert dispatch(run, release, row[:length], None, dispatcher).path == path

    documents = routing.summary["documents"]
    assert max(documents) - min(documents) <= 1  # capacity and floor 1

    # The router's training stands in the costs of the row that it routes, and in no other's.
    tokens_learned = 4 * 2 * 15 * 8 * PREFIX
    tokens_scored = 4 * 2 * len(run.corpus.documents("train")) * PREFIX
    fit = tokens_learned * flops_per_token(model, PREFIX)
    fit += tokens_scored * flops_per_token(model, PREFIX, training=False)
    each = flops_per_token(RUN.model, RUN.data.length)
    report = make_report(run)
    assert any("fitting the small models" in note for note in report.notes)
    for row in report.rows:
        is_routed = row.name.startswith(MODULAR)
        assert row.flops == row.tokens * each + (fit if is_routed else 0)
        assert (row.seconds >= routing.summary["small_models_seconds"]) or not is_routed


def work_through(run, stage):
    work_while(
        lambda: stage not in {each.stage for each in run.ledger.facts.stages()}, worker_of(run)
    )


@pytest.fixture
def small(begin):
    """The folder of such a run that is done as far as its shards."""
    run = begin(RUN, name="small")
    work_through(run, "route")
    return run.address.folder


def test_what_is_held_out_for_early_stopping_trains_no_small_model(begin, monkeypatch):
    learned = set()

    def batch(tokens_BT, lengths_B):
        learned.update(map(tuple, tokens_BT.tolist()))
        return real(tokens_BT, lengths_B)

    real = small_models._batch
    monkeypatch.setattr(small_models, "_batch", batch)
    run = begin(changed(RUN, inner={"hold_out": 0.2}))
    work_through(run, "prepare")
    train = run.corpus.documents("train")
    fitted = small_models.fit_small_models(run, np.arange(len(train)) % 4)
    assert len(fitted.choices_NK) == len(train), "shards are made of all documents"
    trained = load_plan(run.objects.file(run.stage("prepare").artifacts["everything"])).documents
    beginnings, _ = first_tokens(run.corpus, trained, PREFIX)
    assert len(trained) < 0.9 * len(train)
    assert learned
    assert learned <= set(map(tuple, beginnings.tolist()))


def test_from_its_base_model_the_same_small_models_are_fitted_again(small, begin):
    run = begin(RUN, name="again", start=f"{small}@base")
    work_through(run, "route")
    with reading(small) as source:
        there, here = (each.stage("route").artifacts for each in (source, run))
    assert {name: receipt.digest for name, receipt in here.items()} == {
        name: receipt.digest for name, receipt in there.items()
    }
    assert "the router is fitted here" in run.given("notes")[0]


BY_FEATURES = changed(RUN, routing={"kind": "kmeans"})


@pytest.mark.parametrize("here", [RUN, BY_FEATURES], ids=["both", "there"])
def test_modules_whose_shards_small_models_made_are_no_start(small, tmp_path, here):
    with pytest.raises(CannotStartFrom, match=r"small_models.*@base fits a router") as refused:
        from_run(here, tmp_path / "new", f"{small}@0")
    assert refused.value.exit_code == 2
    assert not (tmp_path / "new").exists()
