"""Which snapshots are sent to a bucket, and how many phases a lost machine costs."""

import dataclasses
import hashlib

from dipaco.runs.sent_snapshots import is_sent, num_unsent
from tests.control.conftest import GRID, arm


def test_every_third_and_the_last_are_sent():
    modular = arm("modular", GRID, 8, averaged=True)
    assert [is_sent(modular, 0, phase, 3) for phase in range(8)] == [
        *(False, False, True, False, False, True, False, True)
    ]
    assert [num_unsent(modular, 0, phase, 3) for phase in range(8)] == [1, 2, 0, 1, 2, 0, 1, 0]
    assert all(is_sent(modular, 0, phase, 1) for phase in range(8))


def test_phases_that_a_path_takes_no_part_in_do_not_count():
    sampled = dataclasses.replace(arm("modular", GRID, 12, averaged=True), path_share=0.5)
    for path in range(4):
        taken = [phase for phase in range(12) if path in sampled.paths_in(phase)]
        sent = [is_sent(sampled, path, phase, 2) for phase in taken]
        assert sent == [n % 2 == 0 or n == len(taken) for n in range(1, len(taken) + 1)]


def test_each_phase_is_drawn_once_however_many_there_are_and_however_often_it_is_asked(monkeypatch):
    phases, drawn, sha256 = 1200, [], hashlib.sha256
    sampled = arm("modular", GRID, phases, averaged=True)
    sampled = dataclasses.replace(sampled, path_share=0.5, seed=91)
    taken = {
        path: [phase for phase in range(phases) if path in sampled.paths_in(phase)]
        for path in range(4)
    }

    def counting(text):
        drawn.append(text)
        return sha256(text)

    monkeypatch.setattr(hashlib, "sha256", counting)
    for path in range(4):
        for phase in taken[path][-3:]:
            is_sent(sampled, path, phase, 2)
    assert sampled.path_steps == sum(map(len, taken.values())) * 10
    assert len(drawn) <= 4 * (phases + 1), "the first one again, for how many take part"
