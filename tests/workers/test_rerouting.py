"""A run that is re-routed every few tokens in the end: its router, its rows, and its law."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.control.tasks import Claim, Task
from dipaco.data.first_tokens import first_tokens
from dipaco.errors import SettingsDisagree
from dipaco.evaluation.perplexity import score_tokens
from dipaco.routing import within
from dipaco.routing.config import RerouteConfig
from dipaco.store.tensors import load_tree
from dipaco.topology import Level, Topology
from dipaco.workers import rerouter
from dipaco.workers.rerouter import reroute
from tests.workers.conftest import CONFIG, EVERYTHING, worker_of

REROUTED = dataclasses.replace(
    CONFIG,
    phases=1,
    evaluation=dataclasses.replace(CONFIG.evaluation, every_phases=1),
    reroute=RerouteConfig(every=(4, 16, 100), steps=20, batch_size=8, learning_rate=3e-3),
)


def test_the_rows_are_in_the_report_and_w_beyond_the_length_is_routing_once(begin, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "dipaco.routing.within.targets",
        lambda values, *rest, targets=within.targets: (
            asked.append(targets(values, *rest)) or asked[-1]
        ),
    )
    run = begin(REROUTED)
    worker = worker_of(run)
    while worker.run_once():
        pass
    assert not run.ledger.unfinished()
    rows = {row["every"]: row for row in run.stage("reroute").summary["rows"]}
    assert list(rows) == [4, 16, 100, None]
    (evaluated,) = (e for e in run.ledger.evaluations() if e.arm == MODULAR)
    # 16 tokens are predicted: one chunk of 16 is all of them.
    assert rows[16] | {"every": 0} == rows[100] | {"every": 0} == rows[None] | {"every": 0}
    assert rows[None]["perplexity"] == evaluated.perplexity
    assert rows[None]["switches"] == 0
    assert rows[4]["tokens"] == evaluated.tokens

    report = json.loads(run.layout.report("json").read_bytes())
    names = [row["name"] for row in report["rows"]]
    assert names == [
        *("modular", "modular_every_100", "modular_every_16", "modular_every_4"),
        "modular_best_path",
    ]
    assert any("read again for each predicted" in note for note in report["notes"])

    # What the router learned from is what the paths say of its documents.
    release, documents = run.ledger.release(MODULAR), run.corpus.documents("router")
    tokens, lengths = first_tokens(run.corpus, documents, CONFIG.data.length)
    values = [
        score_tokens(run.programs.log_likelihoods(run.path_of(release, path)), tokens, lengths)[2]
        for path in range(4)
    ]
    np.testing.assert_array_equal(asked[0], within.targets(values, lengths))

    router = load_tree(run.objects, run.stage("reroute").artifacts["within_router"])
    base = run.base_parts()
    assert abs(router["head"]["weight"]).max() > 0
    assert router["model"].keys() == base.keys()
    assert (router["model"]["embed"]["table"] != base["embed"]["table"]).any()


def test_it_needs_several_paths_and_every_document_under_all_of_them():
    every = RerouteConfig(every=(16,))
    with pytest.raises(SettingsDisagree, match="more than one path"):
        dataclasses.replace(
            CONFIG,
            topology=Topology(levels=(Level(name="all", parts=EVERYTHING),)),
            reroute=every,
        )
    evaluation = dataclasses.replace(CONFIG.evaluation, best_path=False)
    with pytest.raises(SettingsDisagree, match="best_path=true"):
        dataclasses.replace(CONFIG, evaluation=evaluation, reroute=every)


def test_the_router_is_kept_as_it_was_when_it_did_best_on_its_hold_out(begin, monkeypatch):
    run = begin(REROUTED)
    worker = worker_of(run)
    while worker.run_once():
        pass
    seen = []
    real = rerouter._hold_out_loss

    def at_its_best_after_five(measure, params, rows, held_out, size):
        loss = real(measure, params, rows, held_out, size)
        batches = [measure(params, rows.batch(held_out[i : i + 1])) for i in range(len(held_out))]
        nats, count = np.asarray(batches, np.float64).sum(axis=0)
        assert loss == pytest.approx(nats / count, rel=1e-5)
        seen.append(copied(params))
        return abs(len(seen) - 5.0)

    monkeypatch.setattr(rerouter, "_hold_out_loss", at_its_best_after_five)
    claim = Claim(Task("reroute"), 1, 1, "test")
    (fact,) = reroute(run, claim, lambda *_: None)
    assert len(seen) == REROUTED.reroute.steps  # fewer than 40: looked at after each
    assert fact.summary["step"] == 5
    kept = load_tree(run.objects, fact.artifacts["within_router"])
    assert trees.digest(kept) == trees.digest(seen[4]) != trees.digest(seen[-1])

    # The documents held out are too short to be asked in: the last.
    monkeypatch.setattr(rerouter, "_hold_out_loss", lambda *_: math.inf)
    (fact,) = reroute(run, claim, lambda *_: None)
    assert fact.summary["step"] == REROUTED.reroute.steps

    # Nothing is held out: the last.
    monkeypatch.setattr(rerouter, "_hold_out_loss", None)
    config = dataclasses.replace(REROUTED.reroute, hold_out=0.0)
    monkeypatch.setattr(run, "config", dataclasses.replace(REROUTED, reroute=config))
    (fact,) = reroute(run, claim, lambda *_: None)
    assert fact.summary["step"] == REROUTED.reroute.steps


def copied(params):
    return jax.tree.map(np.array, params)


def test_a_router_that_is_stopped_on_the_way_goes_on_from_that_step(begin, monkeypatch):
    checks = []

    def at_its_best_after_three(*_):
        checks.append(0)
        return abs((len(checks) - 1) % REROUTED.reroute.steps - 2.0)

    monkeypatch.setattr(rerouter, "_hold_out_loss", at_its_best_after_three)
    run, before = begin(REROUTED), []
    worker = worker_of(run)

    def stepped(claim, loss, tokens):
        if claim.task.kind == "reroute":
            before.append(loss)
            if len(before) == 7:
                worker.stop()

    monkeypatch.setattr(worker._watcher, "stepped", stepped)
    while not worker._should_stop and worker.run_once():
        pass
    partway = run.ledger.partway("", 0, 0)
    assert 7 <= partway.step == len(before) < REROUTED.reroute.steps
    another, after = worker_of(run), []
    monkeypatch.setattr(another._watcher, "stepped", lambda _, loss, tokens: after.append(loss))
    while another.run_once():
        pass
    assert not run.ledger.unfinished()
    assert run.ledger.partway("", 0, 0) is None
    assert not list(run.layout.root.glob("snapshots/reroute/*/*"))

    undisturbed = []
    (fact,) = reroute(
        run, Claim(Task("reroute"), 1, 1, "test"), lambda loss, _: undisturbed.append(loss)
    )
    assert [*before, *after] == undisturbed
    assert fact.artifacts == run.stage("reroute").artifacts
    assert fact.summary["step"] == run.stage("reroute").summary["step"] == 3
    assert len(checks) == 2 * REROUTED.reroute.steps
