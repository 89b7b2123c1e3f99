"""A text ends at its end token, unless it is ignored or comes too early."""

import pytest

from dipaco.serving.decoding.request_queue import Finish
from dipaco.serving.decoding.sampling import SamplingSettings
from tests.support.serving_rig import ids, make_loop, read, request, run_until_idle

WARM = SamplingSettings(temperature=1.0)


@pytest.fixture(scope="module")
def loop():
    return make_loop()


def made_by(loop, **more) -> list[int]:
    stream = loop.submit(request(max_new_tokens=24, **more))
    run_until_idle(loop)
    return ids(stream)


@pytest.mark.parametrize("sampling", [SamplingSettings(), WARM], ids=["greedy", "drawn"])
def test_a_stop_token_is_not_made_before_the_fewest_tokens(loop, sampling):
    free = made_by(loop, sampling=sampling, seed=1)
    stop = free[5]
    assert made_by(loop, sampling=sampling, seed=1, stop_ids=frozenset({stop}))[-1] == stop
    masked = made_by(loop, sampling=sampling, seed=1, stop_ids=frozenset({stop}), min_new_tokens=9)
    assert len(masked) > 9
    assert stop not in masked[:9]
    if sampling.temperature == 0:  # nothing else changes before it
        assert masked[: free.index(stop)] == free[: free.index(stop)]


def test_only_the_row_that_asks_is_masked(loop):
    free = made_by(loop)
    stop = frozenset({free[3]})
    streams = [
        loop.submit(request(max_new_tokens=24, **more))
        for more in ({}, {"stop_ids": stop}, {"stop_ids": stop, "min_new_tokens": 24})
    ]
    run_until_idle(loop)
    (all_, _), (stopped, end), (masked, masked_end) = map(read, streams)
    assert [token.id for token in all_] == free
    assert [token.id for token in stopped] == free[: free.index(free[3]) + 1]
    assert end == Finish("stop")
    assert free[3] not in {token.id for token in masked}
    assert (len(masked), masked_end) == (24, Finish("length"))


def test_more_tokens_than_any_context_holds_end_no_other_row(loop):
    free = made_by(loop)
    stop, most = frozenset({free[3]}), 2**31 - 1
    streams = [
        loop.submit(request(max_new_tokens=24)),
        loop.submit(request(max_new_tokens=most, min_new_tokens=most, stop_ids=stop)),
    ]
    run_until_idle(loop)
    (undisturbed, end), (masked, masked_end) = map(read, streams)
    assert [token.id for token in undisturbed] == free
    assert (end, masked_end) == (Finish("length"), Finish("length"))
    assert free[3] not in {token.id for token in masked}
