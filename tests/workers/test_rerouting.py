"""A run that is re-routed every few tokens at its end: its router, its rows, and its law."""

import json
import math

import jax
import numpy as np
import pytest
from support.smallest_run import EVERYTHING

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Claim, Task
from dipaco.data.windows import first_tokens
from dipaco.errors import SettingsDisagree
from dipaco.evaluation.perplexity import score_tokens
from dipaco.routing import token_router as within
from dipaco.routing.config import RerouteConfig
from dipaco.store.tensors import load_tree
from dipaco.topology import Level, Topology
from dipaco.workers.errors import Preempted, RouterDiverged
from dipaco.workers.tasks import token_router_training
from dipaco.workers.tasks.reroute import reroute
from tests.workers.conftest import CONFIG, changed, finish, worker_of

REROUTED = changed(
    CONFIG,
    phases=1,
    evaluation={"every_phases": 1},
    reroute=RerouteConfig(every=(4, 16, 100), steps=20, learning_rate=3e-3),
)


@pytest.mark.slow
def test_rerouting_is_in_the_report_and_a_window_beyond_the_length_is_routing_once(
    begin, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        "dipaco.routing.token_router.targets",
        lambda values, *rest, targets=within.targets: (
            asked.append(targets(values, *rest)) or asked[-1]
        ),
    )
    run = begin(REROUTED)
    finish(run)
    rows = {row["every"]: row for row in run.stage("reroute").summary["rows"]}
    assert list(rows) == [4, 16, 100, None]
    (evaluated,) = (e for e in run.ledger.facts.evaluations() if e.arm == MODULAR)
    # 16 tokens are predicted: one chunk of 16 is all of them.
    assert rows[16] | {"every": 0} == rows[100] | {"every": 0} == rows[None] | {"every": 0}
    assert rows[None]["perplexity"] == evaluated.perplexity
    assert rows[None]["switches"] == 0
    assert rows[4]["tokens"] == evaluated.tokens

    report = json.loads(run.layout.report("json").read_bytes())
    names = [row["name"] for row in report["rows"]]
    assert names == [
        *("modular", "modular_every_100", "modular_every_16", "modular_every_4"),
        *("modular_by_likelihood", "modular_ensemble_2", "modular_ensemble"),
        *("modular_ensemble_renewed", "modular_best_path"),
    ]
    assert any("read again for each predicted" in note for note in report["notes"])

    # What the router learned from is what the paths say of its documents.
    release, documents = run.ledger.facts.release(MODULAR), run.corpus.documents("router")
    tokens, lengths = first_tokens(run.corpus, documents, CONFIG.data.length)
    values = [
        score_tokens(
            run.scoring_programs.log_likelihoods(run.path_of(release, path)), tokens, lengths
        )[2]
        for path in range(4)
    ]
    np.testing.assert_array_equal(asked[0], within.targets(values, lengths))

    router = load_tree(run.objects, run.stage("reroute").artifacts["within_router"])
    base = run.base_parts()
    assert abs(router["head"]["weight"]).max() > 0
    assert router["model"].keys() == base.keys()
    assert (router["model"]["embed"]["table"] != base["embed"]["table"]).any()


def test_rerouting_needs_several_paths_and_every_document_scored_under_all():
    every = RerouteConfig(every=(16,))
    one_path = Topology(levels=(Level(name="all", parts=EVERYTHING),))
    with pytest.raises(SettingsDisagree, match="more than one path"):
        changed(CONFIG, topology=one_path, reroute=every)
    with pytest.raises(SettingsDisagree, match="best_path=true"):
        changed(CONFIG, evaluation={"best_path": False}, reroute=every)


@pytest.fixture
def done(begin, monkeypatch):
    """A finished run, whose router can be trained again; looked at after 7, 14 and 20 steps."""
    monkeypatch.setattr(token_router_training, "NUM_CHECKS", 3)
    return begin(REROUTED, until="the end")


CLAIM = Claim(Task("reroute"), 1, 1, "test")


@pytest.mark.slow
def test_the_router_of_the_lowest_hold_out_loss_is_kept(done, monkeypatch):
    seen = []
    real = token_router_training._hold_out_loss

    def at_its_best_after_the_second(measure, params, rows, held_out, size):
        loss = real(measure, params, rows, held_out, size)
        batches = [measure(params, rows.batch(held_out[i : i + 1])) for i in range(len(held_out))]
        nats, count = np.asarray(batches, np.float64).sum(axis=0)
        assert loss == pytest.approx(nats / count, rel=1e-5)
        seen.append(jax.tree.map(np.array, params))
        return abs(len(seen) - 2.0) + 0.5

    monkeypatch.setattr(token_router_training, "_hold_out_loss", at_its_best_after_the_second)
    (fact,) = reroute(done, CLAIM, lambda *_: None)
    assert len(seen) == 3
    assert (fact.summary["step"], fact.summary["hold_out_loss"]) == (14, 0.5)
    kept = load_tree(done.objects, fact.artifacts["within_router"])
    assert trees.digest(kept) == trees.digest(seen[1]) != trees.digest(seen[2])

    report = json.loads(done.layout.report("json").read_bytes())
    step = done.stage("reroute").summary["step"]
    assert any(f"kept as it was after {step} of 20 steps" in note for note in report["notes"])


def test_without_a_usable_hold_out_the_router_of_the_last_step_is_kept(done, monkeypatch):
    # The documents held out are too short to be asked in.
    monkeypatch.setattr(token_router_training, "_hold_out_loss", lambda *_: math.inf)
    (fact,) = reroute(done, CLAIM, lambda *_: None)
    assert (fact.summary["step"], fact.summary["hold_out_loss"]) == (20, None)


def test_a_diverged_router_is_reported_with_its_own_setting(done, monkeypatch):
    monkeypatch.setattr(token_router_training, "_hold_out_loss", lambda *_: math.nan)
    with pytest.raises(RouterDiverged, match=r"nan at step 7;.*reroute\.learning_rate"):
        reroute(done, CLAIM, lambda *_: None)

    monkeypatch.setattr(token_router_training, "_hold_out_loss", lambda *_: 1.0)
    step = token_router_training.make_step

    def bad_at_ten(*args):
        real, taken = step(*args), []

        def stepped(state, batch, rate):
            taken.append(0)
            state, metrics = real(state, batch, rate)
            is_bad = len(taken) == 10
            return state, metrics._replace(loss=metrics.loss * (math.inf if is_bad else 1.0))

        return stepped

    monkeypatch.setattr(token_router_training, "make_step", bad_at_ten)
    with pytest.raises(RouterDiverged, match="inf at step 10;"):
        reroute(done, CLAIM, lambda *_: None)


@pytest.mark.slow
def test_a_router_stopped_at_any_step_goes_on_bit_for_bit(done, monkeypatch):
    undisturbed = []
    (whole,) = reroute(done, CLAIM, lambda loss, _: undisturbed.append(loss))
    for attempt, stop in enumerate((1, 6, 7, 13, 19), start=2):
        losses, asked = [], []

        def should_stop(asked=asked, stop=stop):
            asked.append(0)
            return len(asked) > stop

        with pytest.raises(Preempted) as stopped:
            reroute(
                done,
                CLAIM._replace(attempt=attempt),
                lambda loss, _, losses=losses: losses.append(loss),
                should_stop,
            )
        partial_snapshot = stopped.value.partial_snapshot
        assert partial_snapshot.step == len(losses) == stop
        with monkeypatch.context() as resumed:
            resumed.setattr(
                done.ledger.facts, "partial_snapshot", lambda *_, it=partial_snapshot: it
            )
            (fact,) = reroute(done, CLAIM, lambda loss, _, losses=losses: losses.append(loss))
        assert losses == undisturbed
        assert fact.artifacts == whole.artifacts
        assert fact.summary == whole.summary


def test_a_stopped_worker_releases_the_router_with_a_partial_snapshot(begin, monkeypatch):
    run, before = begin(REROUTED), []
    worker = worker_of(run)

    def step_taken(claim, loss, tokens):
        if claim.task.kind == "reroute":
            before.append(loss)
            if len(before) == 7:
                worker.stop()

    monkeypatch.setattr(worker._callbacks, "step_taken", step_taken)
    while not worker._is_asked_to_stop and worker.run_once():
        pass
    partial_snapshot = run.ledger.facts.partial_snapshot("", 0, 0)
    assert 7 <= partial_snapshot.step == len(before) < REROUTED.reroute.steps
    another, after = worker_of(run), []
    monkeypatch.setattr(
        another._callbacks, "step_taken", lambda _, loss, tokens: after.append(loss)
    )
    while another.run_once():
        pass
    assert not run.ledger.queue.unfinished()
    assert run.ledger.facts.partial_snapshot("", 0, 0) is None
    assert not list(run.layout.root.glob("snapshots/reroute/*/*"))

    undisturbed = []
    (fact,) = reroute(run, CLAIM, lambda loss, _: undisturbed.append(loss))
    assert [*before, *after] == undisturbed
    assert fact.artifacts == run.stage("reroute").artifacts
