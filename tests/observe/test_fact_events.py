"""Recorded facts as events."""

import dataclasses
import math

import msgspec
from support.made_up_facts import contribution, sampled, trained

from configs import toy
from dipaco.control.planning.summaries import Prepared, Routed
from dipaco.control.planning.tasks import (
    LARGEST_FLOAT32,
    Claim,
    Evaluated,
    GradientNorms,
    StageDone,
    Task,
)
from dipaco.observe.fact_events import fact_events
from dipaco.observe.trackers import numbers_of

CONFIG = toy.run()
SHARDS = Routed(
    documents=[3, 1], domains=[{"law": 1, "code": 2}, {"law": 1}], test=[1, 0], test_bytes=9
)


def done(stage, summary):
    return StageDone(stage=stage, artifacts={}, summary=summary.as_json(), seconds=1.0)


def lines(fact, kind="train"):
    claim = Claim(Task(kind), 1, 1, "w")
    return [event.line for event in fact_events(fact, claim, CONFIG, 1.5)]


def test_a_routing_shows_the_shard_of_every_path_with_its_largest_domains():
    assert lines(done("route", SHARDS)) == [
        "path 0: 3 documents (75.0%), mostly code 67%, law 33%",
        "path 1: 1 documents (25.0%), mostly law 100%",
    ]


def test_a_shard_outside_its_bounds_is_a_warning():
    summary = msgspec.structs.replace(SHARDS, outside_bounds="path 0 87.5%.")
    *_, line = lines(done("route", summary))
    assert line == "warning: shards outside their bounds: path 0 87.5%."


def test_a_corpus_says_what_was_left_out_and_one_domain_is_no_plural():
    summary = Prepared(
        documents={"train": 1000, "test": 1},
        tokens=1,
        num_bytes=9,
        domains={"notes": 1001},
        left_out={"law": "no network"},
        notes=["Not read: 2 .py."],
    )
    assert lines(done("prepare", summary)) == [
        "corpus prepared: 1,001 documents, 1 token, 1 domain, 1.0 s",
        "warning: domain law left out: no network",
        "text: Not read: 2 .py.",
    ]


def test_a_base_model_that_comes_trained_is_no_event():
    assert lines(dataclasses.replace(trained("base", 0, 0), losses=(), tokens=0)) == []


def test_a_trained_path_and_an_evaluation_show_their_numbers():
    (line,) = lines(trained("modular", 2, 0))
    assert line.startswith(f"modular phase 1/{CONFIG.phases}, path 2: loss ")
    evaluated = Evaluated(
        arm="modular",
        phase=0,
        perplexity=20.5,
        best_path_perplexity=None,
        documents=7,
        tokens=100,
        seconds=1.0,
    )
    steps = CONFIG.plan.arm("modular").steps_before(0)
    assert lines(evaluated) == [
        f"modular evaluated after {steps} steps: perplexity 20.50 on 7 documents"
    ]


def test_trackers_get_the_gradient_norms_of_a_path_where_they_are_known():
    def numbers(fact):
        (event,) = fact_events(fact, Claim(Task("train"), 1, 1, "w"), CONFIG, 1.5)
        found = numbers_of(event)
        assert found is not None
        return {name.rpartition("/")[2]: value for name, value in found.values.items()}

    known = numbers(trained("modular", 2, 0))
    assert (known["gradient_norm"], known["largest_gradient_norm"]) == (0.375, 0.5)
    by_volunteers = numbers(dataclasses.replace(trained("modular", 2, 0), norms=None))
    assert known.keys() - by_volunteers.keys() == {"gradient_norm", "largest_gradient_norm"}


def test_a_norm_that_is_not_finite_is_the_largest_number():
    assert GradientNorms.over([math.nan, 1.0]) == (LARGEST_FLOAT32 / 2 + 0.5, LARGEST_FLOAT32)
    assert GradientNorms.over([]) is None


def test_texts_of_the_modular_arm_are_lines_whatever_characters_they_have():
    assert lines(sampled("modular", 2)) == [
        "phase 2 path 2, law: In the | begin ing 2",
        "phase 2 path 0, code: def | ",
    ]
    assert lines(sampled("dense", 2)) == []


def test_a_long_text_is_cut_to_a_line():
    fact = sampled("modular", 2)
    long = fact.samples[0]._replace(prompt="a\n" * 40, text="b " * 400)
    (line,) = lines(dataclasses.replace(fact, samples=(long,)))
    assert line == f"phase 2 path 2, law: …{'a ' * 12}| {'b ' * 35}b…"


def test_a_contribution_is_no_event():
    assert lines(contribution("early/0001", 0, 2)) == []
