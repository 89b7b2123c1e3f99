"""Calls of several threads, computed in batches."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dipaco.serving.dispatch import MicroBatcher


class Slow:
    """Doubles its inputs; each batch waits until it may continue."""

    def __init__(self):
        self.batches, self.may_continue, self.has_begun = [], threading.Event(), threading.Event()

    def __call__(self, inputs):
        self.batches.append(list(inputs))
        self.has_begun.set()
        assert self.may_continue.wait(30)
        if 13 in inputs:
            raise ValueError("thirteen")
        return [2 * value for value in inputs]


@pytest.fixture
def computed_at_once():
    """`computed_at_once(inputs)` -> a `Slow` and the futures; the first input is being computed
    while the others come.
    """

    def compute_all(inputs, max_batch=4):
        slow = Slow()
        batcher = MicroBatcher(slow, max_batch)
        first = threads.submit(batcher.compute, inputs[0])
        assert slow.has_begun.wait(30)
        others = []
        for number, value in enumerate(inputs[1:], 1):
            others.append(threads.submit(batcher.compute, value))
            until = time.monotonic() + 30
            while len(batcher._waiting) < number:
                assert time.monotonic() < until
        slow.may_continue.set()
        return slow, [first, *others]

    with ThreadPoolExecutor(16) as threads:
        yield compute_all


def test_calls_during_a_batch_make_the_next_one_in_order(computed_at_once):
    slow, answers = computed_at_once([1, 2, 3, 4, 5, 6, 7])
    assert [answer.result(30) for answer in answers] == [2, 4, 6, 8, 10, 12, 14]
    assert slow.batches == [[1], [2, 3, 4, 5], [6, 7]]


def test_an_error_reaches_every_call_of_its_batch_and_no_other(computed_at_once):
    _, answers = computed_at_once([1, 2, 13, 4, 5], max_batch=3)
    assert [answers[n].result(30) for n in (0, 4)] == [2, 10]
    for number in (1, 2, 3):
        with pytest.raises(ValueError, match="thirteen"):
            answers[number].result(30)
