"""Questions of several threads, answered in batches."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dipaco.serving.micro_batcher import MicroBatcher


class Slow:
    """Answers with twice the question; each batch waits until it may go on."""

    def __init__(self):
        self.batches, self.may_go_on, self.has_begun = [], threading.Event(), threading.Event()

    def __call__(self, questions):
        self.batches.append(list(questions))
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        if 13 in questions:
            raise ValueError("thirteen")
        return [2 * question for question in questions]


@pytest.fixture
def asked_at_once():
    """`asked_at_once(questions)`: a `Slow` and the futures; all but the first question come while
    the first is computed.
    """

    def ask(questions, most=4):
        slow = Slow()
        together = MicroBatcher(slow, most)
        first = threads.submit(together.compute, questions[0])
        assert slow.has_begun.wait(30)
        others = []
        for number, question in enumerate(questions[1:], 1):
            others.append(threads.submit(together.compute, question))
            until = time.monotonic() + 30
            while len(together._asked) < number:
                assert time.monotonic() < until
        slow.may_go_on.set()
        return slow, [first, *others]

    with ThreadPoolExecutor(16) as threads:
        yield ask


def test_who_asks_alone_is_answered_alone():
    assert MicroBatcher(lambda questions: [len(questions)], 4).compute("?") == 1


def test_what_comes_during_a_batch_makes_the_next_one_in_the_order_of_asking(asked_at_once):
    slow, answers = asked_at_once([1, 2, 3, 4, 5, 6, 7])
    assert [answer.result(30) for answer in answers] == [2, 4, 6, 8, 10, 12, 14]
    assert slow.batches == [[1], [2, 3, 4, 5], [6, 7]]


def test_an_error_is_told_to_all_of_its_batch_and_to_nobody_else(asked_at_once):
    _, answers = asked_at_once([1, 2, 13, 4, 5], most=3)
    assert [answers[n].result(30) for n in (0, 4)] == [2, 10]
    for number in (1, 2, 3):
        with pytest.raises(ValueError, match="thirteen"):
            answers[number].result(30)
