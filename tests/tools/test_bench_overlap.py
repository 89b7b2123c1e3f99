"""On a virtual clock volunteers compute nearly all the time where updates are delayed."""

import argparse

import bench_overlap
import pytest
from bench_overlap import Pipeline, VirtualClock, compared, round_seconds

from dipaco.swarm.leading import leasing
from dipaco.swarm.planning.shares import Link

STORM = {
    "block_seconds": [0.8, 1.2, 0.4, 0.8, 1.2],
    "blocks": 96,
    "megabits": 10.0,
    "backbone_megabits": 100.0,
    "megavalues": 1.0,
    "request_seconds": 0.05,
    "steps": 30,
}


def run(**dials):
    return compared(argparse.Namespace(**STORM | dials))


def test_over_ten_megabits_a_second_delayed_updates_compute_nine_tenths_of_the_time():
    found = run()
    assert found["round_seconds"] > 5.0
    assert found["plain"]["computing"] < 0.75
    assert found["delayed"]["computing"] > 0.95


def test_where_an_averaging_takes_no_time_they_save_the_wait_for_the_last_rows():
    found = run(blocks=32, megavalues=0.001)
    assert found["plain"]["computing"] < 0.93
    assert found["delayed"]["computing"] > 0.95


def test_steps_are_no_shorter_than_an_averaging():
    found = run(blocks=8)
    assert found["delayed"]["step_seconds"] == pytest.approx(
        found["round_seconds"] + 0.05, rel=0.02
    )


@pytest.mark.parametrize("is_late", [False, True])
def test_each_block_counts_once(is_late, monkeypatch):
    clock = VirtualClock()
    monkeypatch.setattr(leasing, "time", clock)
    pipeline = Pipeline([0.1, 0.5, 3.0], 12, 0.7, 0.01, clock, is_late=is_late)
    pipeline.run(20)
    counted = sum(map(len, pipeline.counted.values()))
    ahead = sum(rows.ledger.num_done for rows in pipeline._rows) if is_late else 0
    assert counted == 20 * 12 + ahead


def test_a_round_has_two_halves():
    same = [Link(up=10.0, down=10.0)] * 2
    assert round_seconds(same, 100.0) == pytest.approx(10.0)  # half a vector there, half back
    client = Link(up=1.0, down=1.0, can_reduce=False)
    backbone = Link(up=1e9, down=1e9, sends=False)
    assert round_seconds([client, backbone], 100.0) == pytest.approx(200.0)
    assert bench_overlap.MEGABIT_BYTES == 1e6 / 8
