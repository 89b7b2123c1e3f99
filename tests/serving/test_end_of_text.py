"""A text ends at its end token, unless it is ignored or comes too early."""

import pytest

from dipaco.serving.decoding.request_queue import Finish
from dipaco.serving.decoding.sampling import SamplingSettings
from tests.support.serving_rig import CONFIG, make_loop, one_by_one, read, request, run_until_idle

WARM = SamplingSettings(temperature=1.0)


@pytest.fixture(scope="module")
def loop():
    return make_loop()


def made_by(loop, **more) -> list[int]:
    (made,) = one_by_one(loop, [request(max_new_tokens=24, **more)])
    return made


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


@pytest.mark.parametrize("fewest", [24, 2**31 - 1], ids=["all", "more than a context holds"])
def test_only_the_row_that_asks_is_masked(loop, fewest):
    free = made_by(loop)
    stop = frozenset({free[3]})
    masking = {"stop_ids": stop, "min_new_tokens": fewest, "max_new_tokens": fewest}
    streams = [
        loop.submit(request(**{"max_new_tokens": 24, **more}))
        for more in ({}, {"stop_ids": stop}, masking)
    ]
    run_until_idle(loop)
    (all_, all_end), (stopped, end), (masked, masked_end) = map(read, streams)
    assert [token.id for token in all_] == free
    assert [token.id for token in stopped] == free[: free.index(free[3]) + 1]
    assert (all_end, end, masked_end) == (Finish("length"), Finish("stop"), Finish("length"))
    assert free[3] not in {token.id for token in masked}
    assert len(masked) == min(fewest, CONFIG.max_length - len(request().prompt_ids))
