"""The serving loop, its crank turned by hand: company changes nothing, and who leaves is gone."""

import collections
import contextlib
import threading

import jax
import numpy as np
import pytest

from dipaco.model import lm
from dipaco.serving.decoding.generate import generate
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish, Stream
from dipaco.serving.decoding.waiting_requests import WaitingRequests
from dipaco.serving.errors import ContextTooLong, LoopStopping, NoRoomForPath, QueueFull
from dipaco.store.errors import ObjectMissing
from tests.support.serving_rig import (
    CONFIG,
    NUM_PATHS,
    ids,
    lively,
    make_loop,
    prepared,
    read,
    request,
    turn,
)

GREEDY, WARM = SamplingSettings(), SamplingSettings(temperature=1.0, top_k=20, top_p=0.9)
forward = jax.jit(lm.forward, static_argnums=0)
compilations: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compilations.append(event) if "backend_compile" in event else None
)


@pytest.fixture(scope="module")
def loop():
    """Every test leaves it empty."""
    loop = make_loop()
    loop.warm_up(prepared(0))
    return loop


def random_request(rng, **more):
    kinds = (
        GREEDY,
        WARM,
        SamplingSettings(temperature=0.8, min_p=0.1),
        SamplingSettings(repetition_penalty=1.3),
    )
    prompt = rng.integers(0, CONFIG.vocab_size, rng.integers(1, 50)).tolist()
    return request(
        prompt,
        path=int(rng.integers(NUM_PATHS)),
        max_new_tokens=int(rng.integers(1, 40)),
        **{"sampling": kinds[rng.integers(len(kinds))], "seed": int(rng.integers(2**60)), **more},
    )


# --- what comes out ---------------------------------------------------------------------------


def test_greedy_decoding_is_the_argmax_of_the_full_forward(loop):
    stream = loop.submit(request(max_new_tokens=20))
    turn(loop)
    tokens, generated = [5, 9, 2], ids(stream)
    padded = np.zeros((1, 32), np.int32)
    for token in generated:
        padded[0, : len(tokens)] = tokens
        logits, _ = forward(CONFIG, lively(0), padded)
        assert token == int(np.argmax(logits[0, len(tokens) - 1]))
        tokens.append(token)
    assert len(generated) == 20
    assert len(set(generated)) > 3


def test_a_request_at_the_place_of_one_that_has_just_left_reads_its_own_prompt():
    loop = make_loop(rows=2)
    long, short = request(max_new_tokens=24), request((7, 7, 1, 4), max_new_tokens=3)
    next_one = request((40, 3, 8, 21), max_new_tokens=12)
    alone = loop.submit(next_one)
    turn(loop)
    # The pool is full: the place that is left by the short one is the only one.
    loop.submit(long)
    loop.submit(short)
    together = loop.submit(next_one)
    turn(loop)
    assert ids(together) == ids(alone)


def test_every_request_of_a_mixed_load_gets_what_it_gets_alone_and_nothing_compiles(loop):
    rng = np.random.default_rng(0)
    requests = [random_request(rng) for _ in range(40)]
    requests += [random_request(rng, num_logprobs=3, prompt_logprobs=True) for _ in range(4)]
    before = len(compilations)
    together = []
    for each in requests:  # they come while others are being served
        together.append(loop.submit(each))
        loop.run_once()
    turn(loop)
    for each, stream in zip(requests, together, strict=True):
        alone = loop.submit(each)
        turn(loop)
        expected = min(each.max_new_tokens, CONFIG.max_length - len(each.prompt_ids))
        tokens = ids(stream)
        assert tokens == ids(alone)
        assert len(tokens) == expected
    assert len(compilations) == before


def test_a_seed_draws_the_same_again_and_another_one_others(loop):
    streams = [loop.submit(request(sampling=WARM, seed=seed)) for seed in (3, 3, 4)]
    turn(loop)
    one, same, other = map(ids, streams)
    assert one == same != other


def test_one_prompt_is_read_once_however_often_it_is_continued(loop):
    before = loop.stats()
    streams = [loop.submit(request(range(20), sampling=WARM, seed=seed)) for seed in range(3)]
    turn(loop)
    again = loop.submit(request(range(20), sampling=WARM, seed=2))
    turn(loop)
    after = loop.stats()
    assert after.num_prompt_tokens - before.num_prompt_tokens == 19
    assert after.num_prompts_reused - before.num_prompts_reused == 3
    *_, last = map(ids, streams)
    assert ids(again) == last


def test_a_prompt_that_another_path_has_read_is_read_again(loop):
    before = loop.stats()
    first, second = (loop.submit(request(range(30, 50), path=path)) for path in (0, 1))
    turn(loop)
    after = loop.stats()
    assert after.num_prompt_tokens - before.num_prompt_tokens == 2 * 19
    assert ids(first) != ids(second)


def test_log_probabilities_are_the_model_s_whatever_is_drawn(loop):
    stream = loop.submit(
        request(sampling=WARM, num_logprobs=2, prompt_logprobs=True, max_new_tokens=6)
    )
    loop.submit(request(path=0))  # a neighbour that wants none
    turn(loop)
    tokens, _ = read(stream)
    said = [*stream.prompt_logprobs, *tokens]
    sequence = np.array([[token.id for token in said]])
    logits, _ = forward(CONFIG, lively(0), sequence)
    expected = np.asarray(jax.nn.log_softmax(logits[0]))
    assert said[0] == (5, None, ())
    for place, token in enumerate(said[1:]):
        best = np.argsort(-expected[place])[:2]
        assert token.logprob == pytest.approx(expected[place, token.id], abs=1e-4)
        assert [id for id, _ in token.top] == best.tolist()
        np.testing.assert_allclose([p for _, p in token.top], expected[place, best], atol=1e-4)


# --- ends -------------------------------------------------------------------------------------


def test_a_stop_token_ends_the_stream_and_is_its_last(loop):
    free = loop.submit(request())
    turn(loop)
    tokens = ids(free)
    stopped = loop.submit(request(stop_ids=frozenset({tokens[5]})))
    turn(loop)
    got, finish = read(stopped)
    assert [token.id for token in got] == tokens[: tokens.index(tokens[5]) + 1]
    assert finish == Finish("stop")


def test_a_stream_ends_when_the_context_is_full_and_harms_no_neighbour(loop):
    neighbour = request(path=1, max_new_tokens=30)
    alone = loop.submit(neighbour)
    turn(loop)
    full, beside = loop.submit(request([1] * 60, path=1, max_new_tokens=99)), loop.submit(neighbour)
    turn(loop)
    tokens, finish = read(full)
    assert (len(tokens), finish) == (4, Finish("length"))
    assert ids(beside) == ids(alone)


def test_who_cancels_frees_a_row_for_who_waits():
    loop = make_loop(rows_per_path=1)
    first, second = loop.submit(request(max_new_tokens=60)), loop.submit(request(max_new_tokens=2))
    loop.run_once()
    assert loop.stats()[:2] == (1, {("", 0): 1})
    first.cancel()
    loop.run_once()
    tokens, finish = read(first)
    assert (len(tokens), finish) == (4, Finish("cancelled"))
    assert len(ids(second)) == 2


def test_who_cancels_while_waiting_never_begins(loop):
    stream = loop.submit(request())
    stream.cancel()
    assert not loop.run_once()
    assert read(stream) == ([], Finish("cancelled"))


def test_a_listener_that_fails_is_one_that_hung_up(loop):
    calm = loop.submit(request())

    def fail(item):
        raise ConnectionError

    loop.submit(request(), on_token=fail)
    turn(loop)
    assert len(ids(calm)) == 10
    assert loop.stats().rows_per_path == {}


# --- the queue --------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[], [1] * 64], ids=["empty", "full"])
def test_a_prompt_without_room_is_refused_at_once(loop, prompt):
    with pytest.raises(ContextTooLong, match="max_length"):
        loop.submit(request(prompt))
    with pytest.raises(ContextTooLong, match="max_length"):
        generate(CONFIG, lively(0), prompt, max_new_tokens=1, sampling=GREEDY, seed=0)


def test_the_queue_is_bounded_and_says_when_to_come_again():
    loop = make_loop(waiting=2)
    for _ in range(loop.limits.rows + 2):
        loop.submit(request())
    with pytest.raises(QueueFull) as refused:
        loop.submit(request())
    assert refused.value.values["retry_after_seconds"] >= 1


def test_a_flood_for_one_path_does_not_keep_another_waiting():
    waiting = WaitingRequests()
    flood = [Stream(request(path=0)) for _ in range(3)]
    late = [Stream(request(path=1)) for _ in range(2)]
    for stream in [*flood, *late]:
        waiting.put(stream)
    alive = collections.Counter({("", 0): 1})
    order = []
    while stream := waiting.next(alive, most=3, but=set()):
        order.append(stream)
        alive["", stream.request.path] += 1
    assert order == [late[0], flood[0], late[1], flood[1]]  # and path 0 has its three


def test_parameters_are_kept_as_long_as_they_are_needed_and_no_longer():
    kept = collections.Counter()

    @contextlib.contextmanager
    def parts_of(release, path):
        kept[release, path] += 1
        yield prepared(path)
        kept[release, path] -= 1

    loop = make_loop(parts_of)
    loop.submit(request(release="a", max_new_tokens=6))
    loop.submit(request(release="b", max_new_tokens=2))
    loop.run_once()
    assert kept == {("a", 0): 1, ("b", 0): 0}
    loop.run_once()
    assert kept["a", 0] == 0


def test_a_path_that_cannot_be_had_ends_its_requests_and_no_others():
    def parts_of(release, path):
        if path == 1:
            raise ObjectMissing(file="late/0001")
        return contextlib.nullcontext(prepared(path))

    loop = make_loop(parts_of)
    whole, broken = loop.submit(request(path=0)), loop.submit(request(path=1))
    turn(loop)
    assert len(ids(whole)) == 10
    tokens, finish = read(broken)
    assert (tokens, finish.reason) == ([], "error")
    assert isinstance(finish.error, ObjectMissing)


def test_a_path_without_room_waits_until_another_is_done():
    @contextlib.contextmanager
    def parts_of(release, path):
        if is_taken.locked():
            raise NoRoomForPath(pinned=1)
        with is_taken:
            yield prepared(path)

    is_taken = threading.Lock()
    loop = make_loop(parts_of)
    first, second = (loop.submit(request(path=path, max_new_tokens=4)) for path in (0, 1))
    loop.run_once()
    assert len(ids(first)) == 4
    loop.run_once()
    assert len(ids(second)) == 4


@pytest.mark.parametrize("where", ["cache_pool.decode_block", "loop.uniforms"])
def test_after_a_failure_of_the_device_the_next_request_is_served(monkeypatch, where):
    loop = make_loop()
    stream = loop.submit(request())
    with monkeypatch.context() as patch:
        patch.setattr(f"dipaco.serving.decoding.{where}", lambda *_, **__: 1 / 0)
        assert loop.run_once()
    _, finish = read(stream)
    assert isinstance(finish.error, ZeroDivisionError)
    after = loop.submit(request())
    turn(loop)
    assert len(ids(after)) == 10


# --- its own thread ---------------------------------------------------------------------------


def test_a_thread_serves_and_a_stop_finishes_what_runs_and_takes_nothing_new():
    loop = make_loop()
    loop.run()
    stream = loop.submit(request(max_new_tokens=40))
    loop.stop(drain_seconds=60)
    tokens, finish = read(stream)
    assert (len(tokens), finish) == (40, Finish("length"))
    assert not loop.is_alive
    with pytest.raises(LoopStopping):
        loop.submit(request())


def test_what_is_not_finished_in_time_is_cancelled():
    loop = make_loop(rows_per_path=1)
    streams = [loop.submit(request(max_new_tokens=60)) for _ in range(3)]
    loop.run_once()
    loop.stop(drain_seconds=0)
    finishes = [read(stream)[1] for stream in streams]
    assert finishes == [Finish("cancelled")] * 3
    assert loop.stats().num_requests == {"cancelled": 3}


# --- generate ---------------------------------------------------------------------------------


def test_generate_makes_as_many_tokens_as_were_asked_for_or_fit():
    for prompt, asked, made in (([1] * 50, 0, 0), ([1] * 50, 9, 9), ([1] * 60, 100, 4)):
        settings = {"max_new_tokens": asked, "sampling": GREEDY, "seed": 0}
        assert len(list(generate(CONFIG, lively(0), prompt, **settings))) == made
