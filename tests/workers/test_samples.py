"""Texts of every release: by the path that serving would choose, its likeliest tokens, the same
when they are made again; and a run that has them trains as one that has none.
"""

import dataclasses

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Claim, Task
from dipaco.data.prompts import SampleSettings
from dipaco.errors import SettingsDisagree
from dipaco.runs.reading.inspection import inspection_of
from dipaco.runs.reading.status import status_of
from dipaco.schedule.plan import BASE
from dipaco.serving.continuation import generate
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.dispatch import dispatch
from dipaco.workers.tasks.sample import sample_release
from tests.workers.conftest import CONFIG, changed, finish, work_until

TOKENS = 8
SAMPLED = changed(
    CONFIG,
    inner={"learning_rate": 3e-2},
    evaluation={"every_phases": 2},
    routing={"rule": "likelihood"},
    samples=SampleSettings(prompts=3, tokens=TOKENS),
)


@pytest.fixture(scope="module")
def run(opened_in, tmp_path_factory):
    """Finished, with the likeliest token at every place. Nobody writes to it."""
    run = opened_in(tmp_path_factory.mktemp("sampled") / "run", SAMPLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dipaco.workers.tasks.sample.TEMPERATURE", 0.0)
        finish(run)
        yield run
    run.ledger.close()


def test_every_release_has_a_text_of_each_prompt_and_the_report_comes_last(run):
    sampled = run.ledger.facts.samples()
    assert [(each.arm, each.phase) for each in sampled] == [(BASE, 2), (MODULAR, 2), (MODULAR, 3)]
    documents = [[sample.document for sample in each.samples] for each in sampled]
    assert len(set(documents[0])) == 3
    assert documents[0] == documents[1] == documents[2]
    assert status_of(run)["finished"]


@pytest.mark.parametrize("arm", [MODULAR, BASE])
def test_a_text_is_the_likeliest_of_the_path_that_serving_chooses(run, arm):
    release = run.ledger.facts.release(arm)
    (sampled,) = (e for e in run.ledger.facts.samples(arm) if e.phase == release.phase)
    (end,) = run.corpus.edges.tokens.stop_ids
    for sample in sampled.samples:
        (tokens,) = run.corpus.tokens([sample.document])
        prompt = tokens[: CONFIG.data.prefix_tokens]
        assert sample.path == dispatch(run, release, prompt).path
        ids = generate(
            run.config.model,
            run.path_of(release, sample.path),
            prompt.tolist(),
            max_new_tokens=TOKENS,
            sampling=SamplingSettings(temperature=0.0),
            seed=0,
            stop_ids=frozenset({end}),
        )
        made = list(ids)
        made = made[:-1] if sample.has_ended else made
        whole = run.corpus.tokenizer().decode([*prompt.tolist(), *made])
        assert (sample.prompt + sample.text, sample.num_tokens) == (whole, len(made))
        assert sample.domain == run.corpus.domain_names[run.corpus.domains[sample.document]]


def test_texts_that_are_made_again_are_the_same(run):
    claim = Claim(Task("sample", MODULAR, "", 3), 1, 2, "another")
    assert sample_release(run, claim) == run.ledger.facts.samples(MODULAR)[-1:]


def test_a_text_stops_where_it_ends_by_itself(run, monkeypatch):
    """The end token is no part of it, and what a path draws after it neither."""
    end = run.corpus.edges.tokens.end
    monkeypatch.setattr(
        "dipaco.workers.tasks.sample.continue_prompts",
        lambda config, parts, prompt_NT, *_, **__: np.tile([65, 66, end, 67], (len(prompt_NT), 1)),
    )
    monkeypatch.setitem(run.__dict__, "config", changed(run.config, samples={"tokens": 4}))
    (fact,) = sample_release(run, Claim(Task("sample", MODULAR, "", 3), 1, 2, "another"))
    two = run.corpus.tokenizer().decode([65, 66])
    assert {sample[-3:] for sample in fact.samples} == {(two, 2, True)}


def test_status_has_the_newest_and_inspect_has_all(run):
    newest = status_of(run)["samples"]
    assert [(each["arm"], each["phase"]) for each in newest] == [(MODULAR, 3)] * 3
    everything = inspection_of(run)["samples"]
    assert len(everything) == 9
    assert everything[-3:] == newest


def test_a_run_that_is_sampled_has_the_modules_of_one_that_is_not(run, begin):
    plain = begin(dataclasses.replace(SAMPLED, samples=SampleSettings()))
    work_until(plain, CONFIG.phases)
    for phase in range(CONFIG.phases + 1):
        receipts = plain.ledger.facts.receipts_at(MODULAR, phase)
        assert receipts == run.ledger.facts.receipts_at(MODULAR, phase)
    assert plain.ledger.facts.samples() == []
    assert status_of(plain)["samples"] == []


def test_a_text_must_fit_after_its_prompt():
    settings = SampleSettings(prompts=1, tokens=17)
    with pytest.raises(SettingsDisagree, match=r"`samples.tokens` is 17.* room for 16"):
        dataclasses.replace(CONFIG, samples=settings)
    dataclasses.replace(CONFIG, samples=dataclasses.replace(settings, prompts=0))
