"""Of a prompt that begins as a text in the cache does, only the rest is read; no text changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.serving.decoding.cache_pool import CachedTexts
from tests.support.serving_rig import failing, ids, make_loop, read, request, run_until_idle

KEY, OTHER = ("", 0), ("", 1)


@pytest.fixture(scope="module")
def loop():
    """Shared: every test begins with an empty cache and leaves no row."""
    return make_loop()


def answer(loop, prompt, **more):
    """The tokens that follow a prompt, and how many of its tokens were read."""
    before = loop.stats().num_prompt_tokens
    stream = loop.submit(request(prompt, **{"max_new_tokens": 8, **more}))
    run_until_idle(loop)
    return ids(stream), loop.stats().num_prompt_tokens - before


def afresh(loop, prompt, **more):
    """The same where nothing is cached."""
    loop._pool.forget()
    return answer(loop, prompt, **more)[0]


@pytest.mark.parametrize("length", [30, 45], ids=["in the middle", "near the end of the context"])
def test_the_next_turn_of_a_chat_reads_its_new_tokens_only(loop, length):
    first = list(range(length))
    loop._pool.forget()
    told, num_read = answer(loop, first)
    assert num_read == length - 1
    second = [*first, *told, 7, 8, 9]
    answered, num_read = answer(loop, second)
    # The answer's last token was never put in, and the prompt's last one begins the first block.
    assert num_read == 3
    assert answered == afresh(loop, second)


def test_a_text_begins_from_texts_of_its_own_path_and_salt_only(loop):
    """Else the time of a first token would tell what another client has asked."""
    asked, own = list(range(30)), {"path": 0, "cache_salt": "key 1 "}
    loop._pool.forget()
    answer(loop, asked, **own)
    for other in ({"path": 1}, {"cache_salt": "key 2 "}):
        assert answer(loop, asked, **own | other)[1] == 29
    assert answer(loop, asked, **own)[1] == 0


def test_chats_with_one_beginning_share_it_and_keep_their_own_texts(loop):
    system = list(range(33))
    loop._pool.forget()
    one, _ = answer(loop, [*system, 40, 41, 42])
    two, num_read = answer(loop, [*system, 50, 51, 52])
    assert num_read == 2
    _, num_read = answer(loop, [*system, 40, 41, 42, *one, 43, 44])
    assert num_read == 2, "the first one's text is still there"
    assert two == afresh(loop, [*system, 50, 51, 52])


def test_a_prompt_that_goes_on_from_one_of_the_same_turn_waits_for_it(loop):
    prompts = [list(range(33)), [*range(33), 50, 51, 52], [*range(33), 50, 51, 53]]
    loop._pool.forget()
    before = loop.stats().num_prompt_tokens
    streams = [loop.submit(request(prompt)) for prompt in prompts]
    run_until_idle(loop)
    assert loop.stats().num_prompt_tokens - before == 32 + 3 + 0
    told = [ids(stream) for stream in streams]
    assert told == [afresh(loop, prompt, max_new_tokens=10) for prompt in prompts]


def test_a_little_in_common_is_not_worth_a_copy(loop):
    loop._pool.forget()
    answer(loop, list(range(30)))
    _, num_read = answer(loop, [0, 1, *range(30, 50)])
    assert num_read == 21


def test_what_a_failed_request_left_in_its_row_is_not_used(loop):
    prompt = list(range(30))
    expected = afresh(loop, prompt)
    loop._pool.forget()
    with failing("decode_block"):
        stream = loop.submit(request(prompt))
        run_until_idle(loop)
    assert read(stream)[1].reason == "error"
    assert answer(loop, prompt) == (expected, 29)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), max_size=6)), max_size=5),
    st.lists(st.integers(0, 2), max_size=6),
    st.sets(st.integers(0, 4)),
)
def test_the_longest_common_beginning_is_found(texts, prompt, free):
    cached = CachedTexts()
    lengths = {}
    for row, (is_own, text) in enumerate(texts):
        cached.put(row, KEY if is_own else OTHER, text)
        if is_own:
            pairs = zip(text, prompt, strict=False)
            same = np.cumprod([a == b for a, b in pairs], dtype=int).sum() if text else 0
            lengths[row] = int(same)
    found = cached.longest(KEY, prompt, free)
    longest = max(lengths.values(), default=0)
    if not longest:
        assert found is None
        return
    assert found.length == longest == lengths[found.pool_row]
    as_it_is = {
        row
        for row, length in lengths.items()
        if length == longest == len(texts[row][1]) and row in free
    }
    assert not as_it_is or found.pool_row in as_it_is
    assert found.is_all == (len(texts[found.pool_row][1]) == longest)
