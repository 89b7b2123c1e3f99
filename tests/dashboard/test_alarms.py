"""What needs a person is said, the most urgent first, as `status` has it."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.dashboard.alarms import alarms_of
from dipaco.dashboard.facts import ArmFacts
from dipaco.runs.opening import reading
from dipaco.runs.reading.status import status_of


@pytest.fixture
def facts(tiny):
    with reading(tiny.folder) as run:
        return ArmFacts(run.plan.arm(MODULAR), synchronous=False)


def test_a_finished_run_needs_nobody(recording):
    assert recording["alarms"] == []


def test_a_run_with_faults_says_each(faulty, facts):
    with reading(faulty.folder) as run:
        status = status_of(run, with_sizes=False)
    sentences = [alarm.sentence for alarm in alarms_of(status, facts)]
    assert sentences[0] == status["why"]["sentence"]
    for piece in ("its norm is too large", "worker one ended: asked to stop", "fell silent"):
        assert any(piece in sentence for sentence in sentences), (piece, sentences)


def test_a_path_whose_loss_rises_or_is_no_number_is_named(facts, recording):
    facts.seconds[:] = 1.0
    facts.losses[:] = [[3.0, 3.0, 3.0, 3.0], [2.9, 3.4, 3.6, np.nan]]
    status = recording["status"] | {"finished": False}
    sentences = " ".join(alarm.sentence for alarm in alarms_of(status, facts))
    assert "path 2 may diverge: loss 3.60 after phase 2, 3.00 at its best" in sentences
    assert "path 3 may diverge" in sentences
    assert "path 0 " not in sentences
    assert "path 1 " not in sentences


def test_a_path_whose_gradients_grow_is_named_before_its_loss_rises(facts, recording):
    facts = ArmFacts(dataclasses.replace(facts.arm, phases=3), synchronous=False)
    facts.seconds[:], facts.losses[:] = 1.0, 3.0
    facts.inner_norms[:] = [[1.0, 1.0, 9.0, np.nan], [0.8, 0.8, 1.0, np.nan], [0.7, 9.5, 5.0, 1.0]]
    status = recording["status"] | {"finished": False}
    sentences = [alarm.sentence for alarm in alarms_of(status, facts) if "may" in alarm.sentence]
    assert sentences == [
        "path 1 may diverge: gradient norm 9.5 after phase 3, 0.9 in most before",
    ]


def test_a_silent_worker_that_holds_a_task_is_named_before_those_that_are_gone(recording, facts):
    def worker(state, silent_seconds, last_words="", task=None):
        of = {"state": state, "silent_seconds": silent_seconds, "last_words": last_words}
        return of | {"task": task}

    gone = {f"a-{i}": worker("lost", 9000.0 - i, "killed by signal 9") for i in range(12)}
    silent = {f"b-{i}": worker("silent", 80.0) for i in range(7)}
    holds = {"z": worker("silent", 70.0, task="train modular path 3 phase 7")}
    status = recording["status"] | {"finished": False, "workers": gone | silent | holds}
    sentences = [alarm.sentence for alarm in alarms_of(status, facts)]
    assert sentences == [
        "worker z has been silent for 70 s; it holds train modular path 3 phase 7",
        *(f"worker b-{i} has been silent for 80 s" for i in range(4)),
        "and 3 more silent workers",
        *(f"worker a-{i} ended: killed by signal 9" for i in (11, 10, 9, 8, 7)),
        "and 7 more ended workers",
    ]


def test_what_is_too_much_to_be_named_is_counted(recording):
    facts = SimpleNamespace(
        arm=SimpleNamespace(topology=SimpleNamespace(num_paths=6)),
        seconds=np.ones((2, 6)),
        losses=np.array([[3.0] * 6, [4.0] * 6]),
        inner_norms=np.ones((2, 6)),
    )
    failure = {"errors": 3, "crashes": 0, "losses": 0, "state": "failed", "reason": "BadText"}
    refusal = {"what": "object", "reason": "damaged.", "task": "train"}
    status = recording["status"] | {
        "finished": False,
        "workers": {},
        "failures": [failure | {"task": f"sample {i}"} for i in range(7)],
        "refusals": [refusal] * 8,
        "num_refusals": 1008,
    }
    alarms = alarms_of(status, facts)
    assert ("error", "and 2 more failures") in alarms
    more = [alarm.sentence for alarm in alarms if alarm.sentence.startswith("and ")]
    assert more == [
        "and 2 more failures",
        "and 1 more diverging path",
        "and 1,003 more refused objects",
    ]


def test_a_refusal_that_comes_between_two_questions_is_counted(recording):
    refusal = {"what": "object", "reason": "damaged.", "task": "train"}
    status = recording["status"] | {"refusals": [refusal] * 5, "num_refusals": 6}
    facts = SimpleNamespace(
        arm=SimpleNamespace(topology=SimpleNamespace(num_paths=0)),
        seconds=np.ones((1, 0)),
        losses=np.ones((1, 0)),
    )
    assert ("warning", "and 1 more refused object") in alarms_of(status, facts)
