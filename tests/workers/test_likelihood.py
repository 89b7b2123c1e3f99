"""A run that is routed by likelihood: evaluation and serving against full forward passes."""

import dataclasses
import itertools
import json
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.data.pack import load_plan
from dipaco.data.splits import HELD
from dipaco.data.windows import first_tokens
from dipaco.errors import SettingsDisagree
from dipaco.evaluation.ensembles import TEMPERATURE
from dipaco.model.lm import forward
from dipaco.runs.errors import NotAllPaths
from dipaco.runs.reading.evaluate_texts import evaluate_texts
from dipaco.runs.routing import features, paths_of_prefixes, router_of
from dipaco.serving.dispatch import Dispatcher, dispatch
from dipaco.store.tensors import load_tree
from dipaco.workers.scoring import document_scores
from tests.workers.conftest import CONFIG, changed, work_while, worker_of

PREFIX, PRIOR = CONFIG.data.prefix_tokens, 0.05
RUN = changed(
    CONFIG,
    inner={"learning_rate": 3e-2},
    evaluation={"every_phases": 1},
    routing={"rule": "likelihood", "shortlist": 3, "prior": PRIOR},
)


@pytest.fixture(scope="module")
def finished(opened_in, begun):
    run = opened_in(begun(RUN, "the end"), RUN)
    yield run
    run.ledger.close()


def by_hand(run, phase, split="test"):
    """By plain sums over the full forward pass of each document alone: under every path the
    log-likelihood of each token; and the paths by features, best first.
    """
    documents = run.corpus.documents(split)
    tokens, lengths = first_tokens(run.corpus, documents, RUN.data.length)
    release = run.ledger.facts.release(MODULAR, phase)
    apply = jax.jit(lambda parts, tokens: forward(RUN.model, parts, tokens)[0])
    values = np.zeros((4, *tokens.shape))
    for path in range(4):
        parts = run.path_of(release, path)
        for n, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
            logits = np.asarray(apply(parts, row[None])[0], np.float64)
            log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            for t in range(1, length):
                values[path, n, t] = log_p[t - 1, row[t]]
    cost = router_of(run, release).costs(
        features(run, tokens[:, :PREFIX], lengths.clip(max=PREFIX))
    )
    return values, lengths, np.argsort(cost, axis=1, kind="stable")


def test_evaluation_is_what_full_forward_passes_say(finished):
    run = finished
    evaluated = {e.phase: e for e in run.ledger.facts.evaluations() if e.arm == MODULAR}
    goes_elsewhere = False
    # Scored under the shortlist, and under every path.
    for phase, split in itertools.product((1, 3), HELD):
        rows = evaluated[phase].tune_rows
        if split == "test":
            rows = evaluated[phase].other_rows | {"": evaluated[phase].perplexity}
            if phase == 3:
                rows["best_path"] = evaluated[phase].best_path_perplexity
        values, lengths, order = by_hand(run, phase, split)
        score = values[:, :, :PREFIX].sum(axis=2)
        score[order[:, 0], np.arange(len(order))] += PRIOR
        score[order[:, 3], np.arange(len(order))] = -np.inf  # the one outside the shortlist
        chosen = score.argmax(axis=0)
        goes_elsewhere |= (chosen != order[:, 0]).any()
        count = (lengths - PREFIX).clip(min=0)
        sums = values[:, :, PREFIX:].sum(axis=2)

        def perplexity(sum_N, count=count):
            return np.exp(-sum_N.sum() / count.sum())

        everyone = np.arange(len(order))
        assert rows[""] == pytest.approx(perplexity(sums[chosen, everyone]))
        if phase == 3:
            names = ("by_features", "wrong_path", "ensemble_2", "ensemble", "ensemble_renewed")
            assert set(rows) == {"", "best_path", *names}
            assert rows["best_path"] == pytest.approx(perplexity(sums.max(axis=0)))
            wrong = np.ones(sums.shape, bool)
            wrong[chosen, everyone] = False
            mean_N = np.where(wrong, sums, 0).sum(axis=0) / 3
            assert rows["wrong_path"] == pytest.approx(perplexity(mean_N))
            by_features = perplexity(sums[order[:, 0], everyone])
            assert rows["by_features"] == pytest.approx(by_features)
            score = values[:, :, :PREFIX].sum(axis=2)
            score[order[:, 0], everyone] += PRIOR
            weight = np.exp((score - score.max(axis=0)) / TEMPERATURE)
            weight /= weight.sum(axis=0)
            mixed = np.log(np.einsum("pn,pnt->nt", weight, np.exp(values)))[:, PREFIX:]
            assert rows["ensemble"] == pytest.approx(perplexity(mixed.sum(axis=1)))
        else:
            assert set(rows) == {""}
    assert goes_elsewhere, "some document has a path that is not the first by features"

    for phase in (1, 3):  # what the bootstrap over texts draws from
        scores = document_scores(run, MODULAR, phase)
        assert (np.diff(scores.documents) > 0).all()
        assert np.exp(-scores.sums.sum() / scores.counts.sum()) == pytest.approx(
            evaluated[phase].perplexity
        )

    report = json.loads(run.layout.report("json").read_bytes())
    names = [row["name"] for row in report["rows"]]
    assert names == [
        *("modular", "modular_by_features", "modular_ensemble_2", "modular_ensemble"),
        *("modular_ensemble_renewed", "modular_best_path"),
    ]
    assert any("3 of 4 paths read them too" in note for note in report["notes"])


def test_where_documents_are_dealt_at_random_all_paths_are_compared_and_none_starts_ahead(
    begin,
):
    config = changed(RUN, routing={"kind": "random", "prior": 5.0}, phases=1)
    run = begin(config, until="the end")
    values, lengths, _ = by_hand(run, 1)
    chosen = values[:, :, :PREFIX].sum(axis=2).argmax(axis=0)
    sum_N = values[chosen, np.arange(len(chosen)), PREFIX:].sum(axis=1)
    count = (lengths - PREFIX).clip(min=0).sum()
    (evaluated,) = (e for e in run.ledger.facts.evaluations() if e.arm == MODULAR)
    assert evaluated.perplexity == pytest.approx(np.exp(-sum_N.sum() / count))
    tokens, lengths = first_tokens(run.corpus, run.corpus.documents("test"), PREFIX)
    release = run.ledger.facts.release(MODULAR, 1)
    found = paths_of_prefixes(run, release, config.routing, tokens, lengths)
    assert found.tolist() == chosen.tolist()
    dispatcher = Dispatcher(run, release)
    for row, length, path in zip(tokens[:5], lengths, chosen, strict=False):
        assert dispatch(run, release, row[:length], dispatcher=dispatcher).path == path
    assert set(evaluated.other_rows) > {"by_random"}
    report = json.loads(run.layout.report("json").read_bytes())
    assert "modular_by_random" in [row["name"] for row in report["rows"]]
    (note,) = (note for note in report["notes"] if note.startswith("modular routes"))
    assert "4 of 4 paths read its first" in note
    assert note.endswith("the row beside it at random.")


@pytest.mark.parametrize("shortlist", [3, None])
def test_a_prompt_goes_where_evaluation_sends_its_tokens(finished, monkeypatch, shortlist):
    routing = dataclasses.replace(RUN.routing, shortlist=shortlist)
    run = finished
    monkeypatch.setattr(run, "config", dataclasses.replace(RUN, routing=routing))
    release = run.ledger.facts.release(MODULAR)
    documents = run.corpus.documents("test")
    tokens, lengths = first_tokens(run.corpus, documents, PREFIX)
    lengths = np.where(np.arange(len(lengths)) % 3, lengths, 5)  # some are short prompts
    tokens *= np.arange(PREFIX) < lengths[:, None]
    expected = paths_of_prefixes(run, release, routing, tokens, lengths)
    dispatcher = Dispatcher(run, release)
    start = run.corpus.edges.tokens.start
    for row, length, path in zip(tokens, lengths, expected, strict=True):
        choice = dispatch(run, release, row[:length], dispatcher=dispatcher)
        assert (choice.path, choice.rule) == (path, "likelihood")
        assert choice.ranking()[0] == path
        assert len(choice.ranking()) == (shortlist or 4)
        assert dispatch(run, release, np.append(start, row[:length]), None, dispatcher).path == path
    assert (
        expected
        != paths_of_prefixes(
            run, release, dataclasses.replace(routing, rule="features"), tokens, lengths
        )
    ).any()

    stats = dispatcher.stats
    distinct = {row[:length].tobytes() for row, length in zip(tokens, lengths, strict=True)}
    assert (stats.prompts, stats.prefills) == (len(distinct), len(distinct) * (shortlist or 4))
    assert stats.path_tokens == (shortlist or 4) * stats.base_tokens > 0
    single = dispatch(run, release, tokens[0][:1], dispatcher=dispatcher)
    by_features = dispatch(run, release, tokens[0][:1], rule="features")
    assert (single.path, by_features.rule) == (by_features.path, "features")


def test_evaluation_of_texts_is_that_of_the_run(finished):
    run = finished
    release = run.ledger.facts.release(MODULAR)
    (last,) = (e for e in run.ledger.facts.evaluations() if (e.arm, e.phase) == (MODULAR, 3))
    tokenizer = run.corpus.tokenizer()
    texts = [tokenizer.decode(ids) for ids in run.corpus.tokens(run.corpus.documents("test"))]
    assert evaluate_texts(run, release, texts, beginnings=True)["perplexity"] == pytest.approx(
        last.perplexity
    )
    by_features = evaluate_texts(run, release, texts, rule="features", beginnings=True)
    assert by_features["perplexity"] == pytest.approx(last.other_rows["by_features"])


def test_evaluation_of_texts_keeps_few_paths_on_the_device_and_reads_those_it_has_not(
    finished, monkeypatch
):
    """Two of four, over chunks of eight documents that are on all of them."""
    run = finished
    release = run.ledger.facts.release(MODULAR)
    tokenizer = run.corpus.tokenizer()
    texts = [tokenizer.decode(ids) for ids in run.corpus.tokens(run.corpus.documents("test"))][:16]
    expected = evaluate_texts(run, release, texts)
    monkeypatch.setattr("dipaco.runs.routing.MOST_PATHS", 2)
    monkeypatch.setattr("dipaco.runs.reading.evaluate_texts.CHUNK_DOCUMENTS", 8)
    alive, numbers = weakref.WeakSet(), []

    def log_likelihoods(parts, of=run.scoring_programs.log_likelihoods):
        alive.add(placed := of(parts))
        numbers.append(len(alive))
        return placed

    monkeypatch.setattr(run.scoring_programs, "log_likelihoods", log_likelihoods)
    got = evaluate_texts(run, release, texts)
    assert got.pop("perplexity") == pytest.approx(expected.pop("perplexity"))
    assert got == expected
    assert max(numbers) == 2
    assert len(numbers) <= 4 + 3 * 2  # four reads, then two for each pass over all


def test_a_release_without_all_its_paths_is_refused(finished):
    run = finished
    release = run.ledger.facts.release(MODULAR)
    prompt = np.arange(5, dtype=np.int32)
    fewer = release._replace(paths=release.paths[:3])
    with pytest.raises(NotAllPaths, match="it has 3 paths of 4"):
        Dispatcher(run, fewer)
    with pytest.raises(NotAllPaths, match="it has 3 paths of 4"):
        evaluate_texts(run, fewer, ["word " * 40])
    late = next(digest for module, digest in release.paths[3].items() if module.startswith("late"))
    run.objects.file(release.objects[late]).unlink()
    run.config = changed(RUN, routing={"shortlist": None})
    with pytest.raises(NotAllPaths, match=r"path \d cannot be read"):
        dispatch(run, release, prompt)
    with pytest.raises(NotAllPaths, match=r"path \d cannot be read"):
        evaluate_texts(run, release, ["word " * 40])
    assert dispatch(run, release, prompt, rule="features").scores is not None


ALTERNATED = changed(RUN, routing={"alternations": (1,), "shortlist": None})


@pytest.mark.parametrize("capacity", [pytest.param(None, marks=pytest.mark.slow), 1.0])
def test_an_alternation_gives_documents_to_the_paths_that_find_them_likeliest(begin, capacity):
    bounds = {"capacity": capacity, "floor": 0.0 if capacity is None else 1.0}
    run = begin(changed(ALTERNATED, routing=bounds))
    worker = worker_of(run)
    work_while(lambda: run.ledger.facts.num_labelled(MODULAR, 1) < 4, worker)
    assert worker.run_once()  # the shards
    after, router = run.stage("route", 1), run.router_of(run.stage("route"))
    assert after.artifacts["router"] == run.stage("route").artifacts["router"]

    def scored(split):
        documents = run.corpus.documents(split)
        tokens, lengths = first_tokens(run.corpus, documents, PREFIX)
        score = np.zeros((len(documents), 4))
        for path in range(4):
            parts = run.parts_at(MODULAR, path, 1)
            logits = np.asarray(forward(RUN.model, parts, tokens)[0], np.float64)
            log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
            next_ = np.take_along_axis(log_p[:, :-1], tokens[:, 1:, None], axis=2)[:, :, 0]
            is_token = np.arange(1, PREFIX) < lengths[:, None]
            score[:, path] = np.where(is_token, next_, 0).sum(axis=1)
        by_features = router.assign(features(run, tokens, lengths))[:, 0]
        score[np.arange(len(documents)), by_features] += PRIOR
        return documents, score

    documents, score = scored("train")
    of_router = scored("router")[1]
    price = load_tree(run.objects, after.artifacts["labels"])["prices"]
    if capacity is None:
        assert not price.any()
    else:
        count = np.bincount((of_router - price).argmax(axis=1), minlength=4)
        assert count.max() <= -(-len(of_router) // 4)
        assert count.min() >= len(of_router) // 4
    net = np.sort(score - price, axis=1)
    is_clear = net[:, -1] - net[:, -2] > 1e-4  # a tie may go either way by rounding
    assert is_clear.mean() > 0.9
    chosen = (score - price).argmax(axis=1)
    for path, plan in enumerate(run.shards_of(after).plans):
        trained = load_plan(Path(run.objects.file(plan))).documents
        expected = documents[is_clear & (chosen == path)]
        assert set(expected) <= set(trained)
    assert sum(after.summary["documents"]) == len(documents)
    assert after.summary["after_calibration"] == count.tolist() if capacity else True


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"shortlist": 2}, "an alternation by likelihood compares all paths"),
        ({"target_share": (0.25,) * 4}, "`routing.target_share` is set, and `routing.rule`"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, problem):
    with pytest.raises(SettingsDisagree, match=problem):
        changed(ALTERNATED, routing=settings)
