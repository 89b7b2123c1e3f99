"""What needs a person is said, the most urgent first, as `status` has it."""

import numpy as np

from dipaco.config import MODULAR
from dipaco.dashboard.alarms import alarms_of
from dipaco.dashboard.facts import ArmFacts
from dipaco.runs.opening import reading
from dipaco.runs.status import status_of


def test_a_finished_run_needs_nobody(recording):
    assert recording["alarms"] == []


def test_a_run_with_faults_says_each(faulty):
    with reading(faulty.folder) as run:
        status = status_of(run, with_sizes=False)
        facts = ArmFacts(run.plan.arm(MODULAR), synchronous=False)
    sentences = [alarm.sentence for alarm in alarms_of(status, facts)]
    assert sentences[0] == status["why"]["sentence"]
    for piece in ("its norm is too large", "worker one ended: asked to stop", "fell silent"):
        assert any(piece in sentence for sentence in sentences), (piece, sentences)


def test_a_path_whose_loss_rises_or_is_no_number_is_named(tiny, recording):
    with reading(tiny.folder) as run:
        facts = ArmFacts(run.plan.arm(MODULAR), synchronous=False)
    facts.seconds[:] = 1.0
    facts.losses[:] = [[3.0, 3.0, 3.0, 3.0], [2.9, 3.4, 3.6, np.nan]]
    status = recording["status"] | {"finished": False}
    sentences = " ".join(alarm.sentence for alarm in alarms_of(status, facts))
    assert "path 2 may diverge: loss 3.60 after phase 2, 3.00 at its best" in sentences
    assert "path 3 may diverge" in sentences
    assert "path 0 " not in sentences
    assert "path 1 " not in sentences
