"""A device that fails for every request is a problem of the loop; a request that fails is not."""

import time

import pytest

from dipaco.serving.decoding import device_health
from dipaco.serving.decoding.device_health import FAILURES
from tests.support.serving_rig import (
    compilations,
    failing,
    ids,
    make_loop,
    one_by_one,
    read,
    request,
    run_until_idle,
)
from tests.support.waiting import until


def ended_with(loop, asked):
    stream = loop.submit(asked)
    run_until_idle(loop)
    return read(stream)[1].reason


@pytest.mark.parametrize("program", ["decode_block", "prefill"])
def test_a_device_that_fails_for_every_request_is_a_problem_until_it_makes_tokens(program):
    loop = make_loop()
    assert loop.device_health.problem is None
    with failing(program):
        for number in range(FAILURES):
            assert loop.device_health.problem is None, number
            assert ended_with(loop, request()) == "error"
        assert "makes no tokens" in loop.device_health.problem
    assert ended_with(loop, request()) == "length"
    assert loop.device_health.problem is None


def test_many_requests_that_fail_in_one_moment_are_one_failure():
    loop = make_loop()
    for number in range(1, FAILURES + 1):
        asked = [loop.submit(request()) for _ in range(4)]
        with failing("decode_block"):
            run_until_idle(loop)
        assert {read(stream)[1].reason for stream in asked} == {"error"}
        assert (loop.device_health.problem is None) == (number < FAILURES)


def test_a_server_that_is_sent_nothing_finds_out_that_its_device_is_well_again(monkeypatch):
    monkeypatch.setattr(device_health, "RETRY_SECONDS", 0.05)
    loop = make_loop()
    loop.run()
    with failing("decode_block"):
        for _ in range(FAILURES):
            assert loop.submit(request()).get(timeout_seconds=60).reason == "error"
        until(lambda: loop.device_health.problem)
        time.sleep(0.2)
        assert loop.device_health.problem, "it is tried again, and fails again"
    until(lambda: loop.device_health.problem is None)
    loop.stop(0.0)


def test_failures_with_tokens_between_them_are_none_in_a_row():
    loop = make_loop()
    for _ in range(2 * FAILURES):
        with failing("decode_block"):
            assert ended_with(loop, request()) == "error"
        assert ended_with(loop, request()) == "length"
    assert loop.device_health.problem is None


@pytest.mark.parametrize("program", ["decode_block", "prefill"])
def test_a_request_that_fails_by_itself_is_no_problem_however_often_it_comes(program):
    loop = make_loop()
    (expected,) = one_by_one(loop, [request(max_new_tokens=30)])
    with failing(program, lambda tokens: 63 in tokens):
        for _ in range(2 * FAILURES):
            bad = [loop.submit(request([63] * 20, max_new_tokens=5)) for _ in range(FAILURES)]
            run_until_idle(loop)
            assert {read(stream)[1].reason for stream in bad} == {"error"}
            assert loop.device_health.problem is None
        before = len(compilations)
        beside = loop.submit(request(max_new_tokens=30))
        bad = loop.submit(request([63] * 20, max_new_tokens=5))
        run_until_idle(loop)
        assert read(bad)[1].reason == "error"
        assert ids(beside) == expected
        assert len(compilations) == before
        assert loop.stats().rows_per_path == {}
