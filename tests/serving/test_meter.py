"""The meter of a loop: its speed is of the last minute."""

from types import SimpleNamespace

import pytest

from dipaco.serving.decoding import loop
from dipaco.serving.decoding.loop import RATE_SECONDS, LoopMeter


@pytest.fixture
def clock(monkeypatch):
    """`clock[0]` is the time, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def speed_of(loop_meter):
    return loop_meter.stats(0, {}).tokens_per_second


def test_the_speed_counts_turns_of_the_last_minute_and_is_0_without_any(clock):
    loop_meter = LoopMeter()
    assert speed_of(loop_meter) == 0.0
    for _ in range(100):
        loop_meter.count_block(64, 0.05)
    assert speed_of(loop_meter) == pytest.approx(64 / 0.05)
    clock[0] += RATE_SECONDS - 1
    loop_meter.count_block(10, 1.0)
    clock[0] += 2
    assert speed_of(loop_meter) == pytest.approx(10.0), "only the latest turn is of this minute"
    clock[0] += RATE_SECONDS
    assert speed_of(loop_meter) == 0.0
    assert loop_meter.stats(0, {}).num_tokens == 6410
