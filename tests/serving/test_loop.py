"""The serving loop, turn by turn: batching changes no tokens, and cancelling frees the row."""

import collections
import contextlib
import threading

import numpy as np
import pytest

from dipaco.serving.continuation import generate
from dipaco.serving.decoding.batch import BatchRow
from dipaco.serving.decoding.request_queue import Finish
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.errors import (
    ContextTooLong,
    EmptyPrompt,
    LoopStopping,
    NoRoomForPath,
)
from dipaco.store.errors import ObjectMissing
from tests.support.serving_rig import (
    CONFIG,
    NUM_PATHS,
    compilations,
    failing,
    full_logits,
    ids,
    make_loop,
    one_by_one,
    prepared,
    random_parts,
    read,
    request,
    run_until_idle,
)

GREEDY, WARM = SamplingSettings(), SamplingSettings(temperature=1.0, top_k=20, top_p=0.9)


@pytest.fixture(scope="module")
def loop():
    """Shared: every test leaves it empty."""
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


# --- tokens -----------------------------------------------------------------------------------


def test_greedy_decoding_is_the_argmax_of_the_full_forward(loop):
    (generated,) = one_by_one(loop, [request(max_new_tokens=20)])
    logits = full_logits(CONFIG, random_parts(0), [5, 9, 2, *generated])
    assert generated == logits[2:-1].argmax(axis=-1).tolist()
    assert len(generated) == 20
    assert len(set(generated)) > 3


def test_every_request_of_a_mixed_load_gets_the_tokens_it_gets_alone_and_nothing_compiles(loop):
    rng = np.random.default_rng(0)
    requests = [random_request(rng) for _ in range(40)]
    requests += [random_request(rng, num_logprobs=3, prompt_logprobs=True) for _ in range(4)]
    before = len(compilations)
    batched = []
    for each in requests:  # submitted while others are being served
        batched.append(loop.submit(each))
        loop.run_once()
    run_until_idle(loop)
    made = [ids(stream) for stream in batched]
    assert made == one_by_one(loop, requests)
    room = [CONFIG.max_length - len(each.prompt_ids) for each in requests]
    wanted = [each.max_new_tokens for each in requests]
    assert [len(tokens) for tokens in made] == np.minimum(wanted, room).tolist()
    assert len(compilations) == before


def test_a_request_that_goes_on_elsewhere_counts_its_own_tokens_as_made(loop):
    falling = SamplingSettings(temperature=1.0, frequency_penalty=1.0, presence_penalty=1.0)
    drawn = {"sampling": falling, "seed": 3}
    (tokens,) = one_by_one(loop, [request(max_new_tokens=24, **drawn)])
    rest = drawn | {"prompt": (5, 9, 2, *tokens[:10]), "max_new_tokens": 14}
    resumed, as_prompt = one_by_one(loop, [request(num_given=3, **rest), request(**rest)])
    assert resumed == tokens[10:] != as_prompt


# --- ends -------------------------------------------------------------------------------------


def test_a_cancelled_request_frees_its_row_for_a_waiting_one():
    loop = make_loop(rows_per_path=1)
    first, second = loop.submit(request(max_new_tokens=60)), loop.submit(request(max_new_tokens=2))
    loop.run_once()
    assert loop.stats()[:2] == (1, {("", 0): 1})
    first.cancel()
    loop.run_once()
    tokens, finish = read(first)
    assert (len(tokens), finish) == (4, Finish("cancelled"))
    assert len(ids(second)) == 2


def test_a_request_cancelled_while_waiting_never_begins(loop):
    stream = loop.submit(request())
    stream.cancel()
    assert not loop.run_once()
    assert read(stream) == ([], Finish("cancelled"))


def test_tokens_before_a_failure_within_their_block_are_not_left_out(loop, monkeypatch):
    undisturbed = loop.submit(request())
    run_until_idle(loop)
    fails = iter([False, False, True])

    def takes(row, token):
        if next(fails, False):
            raise RuntimeError("out of memory")
        return True

    monkeypatch.setattr(BatchRow, "takes", takes)
    stream = loop.submit(request())
    run_until_idle(loop)
    assert read(stream) == read(undisturbed)


def test_a_callback_that_raises_cancels_its_own_request_only(loop):
    calm = loop.submit(request())

    def fail(items):
        raise ConnectionError

    loop.submit(request(), on_items=fail)
    run_until_idle(loop)
    assert len(ids(calm)) == 10
    assert loop.stats().rows_per_path == {}


# --- the queue --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "error", "says"),
    [([], EmptyPrompt, "is empty"), ([1] * 64, ContextTooLong, "the context")],
    ids=["empty", "full"],
)
def test_an_empty_or_full_prompt_is_refused_at_once(loop, prompt, error, says):
    with pytest.raises(error, match=says):
        loop.submit(request(prompt))
    with pytest.raises(error, match=says):
        generate(CONFIG, random_parts(0), prompt, max_new_tokens=1, sampling=GREEDY, seed=0)


@pytest.mark.parametrize("path", [0, 1])
def test_a_row_of_a_busy_client_is_paused_for_another_and_goes_on_with_the_same_text(path):
    loop = make_loop()
    busy = [
        request(range(i, i + 9), path=i % 2, client="a", sampling=WARM, seed=i, max_new_tokens=40)
        for i in range(10)
    ]
    new = [
        request(range(i, i + 5), path=path, client="b", max_new_tokens=12, num_logprobs=1)
        for i in range(3)
    ]
    expected = one_by_one(loop, [*busy, *new])
    streams = [loop.submit(each) for each in busy]
    for _ in range(3):
        loop.run_once()
    assert sum(loop.stats().rows_per_path.values()) == 6
    assert loop.stats().num_paused == 0
    seen = []
    streams += [loop.submit(each, seen.extend) for each in new[:1]]
    loop.run_once()
    assert len(seen) == loop.limits.steps_per_block, "it begins in the next turn"
    streams += [loop.submit(each) for each in new[1:]]
    loop.run_once()
    # Where the path is full, only its own rows are shared: with 4 of them, both have 2.
    assert loop.stats().num_paused in (2, 3)
    run_until_idle(loop)
    assert [ids(stream) for stream in streams[:10]] == expected[:10]
    assert [item.id for item in seen[:-1]] == expected[10]
    assert [ids(stream) for stream in streams[11:]] == expected[11:]
    assert loop.stats().num_paused <= 3, "rows that are equally shared are left alone"


def test_a_prompt_is_copied_from_a_row_before_that_row_is_paused_for_another_prompt():
    loop = make_loop()
    busy = [
        request(range(9), path=seed // 3, client="a", sampling=WARM, seed=seed, max_new_tokens=40)
        for seed in range(5)
    ]
    new = [
        request(range(9), client="b", max_new_tokens=12),
        request(range(20, 29), client="b", max_new_tokens=12),
    ]
    expected = one_by_one(loop, [*busy, *new])
    streams = [loop.submit(each) for each in busy]
    loop.run_once()
    streams += [loop.submit(each) for each in new]
    loop.run_once()
    assert loop.stats().num_paused == 1
    run_until_idle(loop)
    assert [ids(stream) for stream in streams] == expected


def test_the_only_row_of_a_path_is_paused_without_a_failing_step(monkeypatch):
    loop = make_loop()
    failed = []
    monkeypatch.setattr(loop, "_go_on_alone", lambda: failed.append("a step"))
    streams = [loop.submit(request(path=path, client="a", max_new_tokens=40)) for path in range(6)]
    loop.run_once()
    streams.append(loop.submit(request(path=1, client="b", max_new_tokens=4)))
    loop.run_once()
    assert loop.stats().num_paused == 1
    assert not failed
    run_until_idle(loop)
    assert [len(ids(stream)) for stream in streams] == [*[40] * 6, 4]


def test_a_client_has_at_most_its_rows_even_when_others_are_free():
    loop = make_loop(rows_per_client=2)
    streams = [loop.submit(request(client="a", max_new_tokens=6)) for _ in range(3)]
    streams.append(loop.submit(request(client="b", max_new_tokens=6)))
    loop.run_once()
    assert loop.stats()[:2] == (1, {("", 0): 3})
    run_until_idle(loop)
    assert [len(ids(stream)) for stream in streams] == [6] * 4


def test_a_path_is_pinned_exactly_while_it_has_active_rows():
    pins = collections.Counter()

    @contextlib.contextmanager
    def parts_of(key):
        pins[key] += 1
        yield prepared(key[1])
        pins[key] -= 1

    def note(items):
        if isinstance(items[-1], Finish):
            pins_at_end.append(pins["b", 0])

    loop, pins_at_end = make_loop(parts_of), []
    loop.submit(request(release="a", max_new_tokens=6))
    loop.submit(request(release="b", max_new_tokens=2), note)
    loop.run_once()
    assert pins == {("a", 0): 1, ("b", 0): 0}
    assert pins_at_end == [0], "who hears of the end may ask for a path in its place"
    loop.run_once()
    assert pins["a", 0] == 0


def test_a_path_that_cannot_be_read_fails_its_own_requests_only():
    def parts_of(key):
        if key[1] == 1:
            raise ObjectMissing(file="late/0001")
        return contextlib.nullcontext(prepared(key[1]))

    loop = make_loop(parts_of)
    whole, broken = loop.submit(request(path=0)), loop.submit(request(path=1))
    run_until_idle(loop)
    assert len(ids(whole)) == 10
    tokens, finish = read(broken)
    assert (tokens, finish.reason) == ([], "error")
    assert isinstance(finish.error, ObjectMissing)


def test_a_path_without_memory_waits_until_another_is_done():
    @contextlib.contextmanager
    def parts_of(key):
        if is_taken.locked():
            raise NoRoomForPath(pinned=1)
        with is_taken:
            yield prepared(key[1])

    is_taken = threading.Lock()
    loop = make_loop(parts_of)
    first, second = (loop.submit(request(path=path, max_new_tokens=4)) for path in (0, 1))
    loop.run_once()
    assert len(ids(first)) == 4
    loop.run_once()
    assert len(ids(second)) == 4


@pytest.mark.parametrize("where", ["decode.decode_block", "decode.prefill", "loop.uniforms"])
def test_after_a_device_failure_the_next_request_is_served(monkeypatch, where):
    loop = make_loop()
    stream = loop.submit(request())
    with monkeypatch.context() as patch:
        patch.setattr(f"dipaco.serving.decoding.{where}", lambda *_, **__: 1 / 0)
        loop.run_once()
    _, finish = read(stream)
    assert isinstance(finish.error, ZeroDivisionError)
    assert one_by_one(loop, [request()]) == one_by_one(make_loop(), [request()])


@pytest.mark.parametrize("where", ["decode_block", "prefill"])
def test_a_failure_ends_the_request_that_caused_it_and_no_other(where):
    others = [
        request(range(3 + i, 24), path=i % 2, sampling=WARM, seed=i, max_new_tokens=30)
        for i in range(3)
    ]
    loop = make_loop()
    expected = one_by_one(loop, others)
    with failing(where, lambda tokens: 63 in tokens):
        streams = [loop.submit(each) for each in others[:2]]
        loop.run_once()
        bad = loop.submit(request([63] * 20, path=0, max_new_tokens=5))
        streams.append(loop.submit(others[2]))
        echoed = loop.submit(request(range(30, 50), max_new_tokens=2, prompt_logprobs=True))
        run_until_idle(loop)
    assert str(read(bad)[1].error) == "out of memory"
    assert [ids(stream) for stream in streams] == expected
    assert len(echoed.prompt_logprobs) == 20
    assert loop.stats().rows_per_path == {}


def test_after_a_failure_each_row_is_read_once_though_others_end_meanwhile(monkeypatch):
    lengths = (40, 9, 40, 9)
    loop = make_loop()
    requests = [request(range(3 + i, 24), max_new_tokens=n) for i, n in enumerate(lengths)]
    streams = [loop.submit(each) for each in requests]
    loop.run_once()
    start, prefill, read_again = loop._pool.start_block, loop._pool.prefill, []

    def fails_once(step):
        monkeypatch.setattr(loop._pool, "start_block", start)
        raise RuntimeError("once")

    def counted(prepared, rows):
        read_again.extend(rows)
        return prefill(prepared, rows)

    monkeypatch.setattr(loop._pool, "start_block", fails_once)
    monkeypatch.setattr(loop._pool, "prefill", counted)
    run_until_idle(loop)
    assert len(read_again) == len(streams)
    assert [len(ids(stream)) for stream in streams] == list(lengths)


def test_a_prompt_that_is_scored_takes_a_whole_context_of_a_turn():
    loop = make_loop(prompt_tokens_per_iteration=CONFIG.max_length)
    asked = [request(range(9), max_new_tokens=2, prompt_logprobs=True) for _ in range(3)]
    streams = [loop.submit(each) for each in asked]
    loop.run_once()
    assert [stream.prompt_logprobs is None for stream in streams] == [False, True, True]
    run_until_idle(loop)
    assert all(len(stream.prompt_logprobs) == 9 for stream in streams)


# --- its own thread ---------------------------------------------------------------------------


def test_stop_finishes_running_requests_and_takes_no_new_ones():
    loop = make_loop()
    loop.run()
    stream = loop.submit(request(max_new_tokens=40))
    loop.stop(drain_seconds=60)
    tokens, finish = read(stream)
    assert (len(tokens), finish) == (40, Finish("length"))
    assert not loop.is_alive
    with pytest.raises(LoopStopping):
        loop.submit(request())


def test_requests_that_outlast_the_drain_time_are_cancelled():
    loop = make_loop(rows_per_path=1)
    streams = [loop.submit(request(max_new_tokens=60)) for _ in range(3)]
    loop.run_once()
    loop.stop(drain_seconds=0)
    finishes = [read(stream)[1] for stream in streams]
    assert finishes == [Finish("cancelled")] * 3
