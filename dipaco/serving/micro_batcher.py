"""Questions that come at the same time, answered at the same time."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class MicroBatcher(Generic[Question, Answer]):
    """One batch after another: what is asked while a batch is computed makes the next one.

    Any thread may ask. There is no thread of its own: whoever asks computes, for all who wait.

    Args:
      answer: the answers to 1 to `most` questions, in their order.
      most: questions in one batch.
    """

    def __init__(self, answer: Callable[[Sequence[Question]], Iterable[Answer]], most: int):
        self._answer, self._most = answer, most
        self._asked: deque[tuple[Question, Future[Answer]]] = deque()
        self._turn = threading.Lock()

    def compute(self, question: Question) -> Answer:
        """Raises what `answer` raises for the batch that the question was in."""
        mine: Future[Answer] = Future()
        self._asked.append((question, mine))
        while not mine.done():
            with self._turn:
                if not mine.done():
                    self._answer_some()
        return mine.result()

    def _answer_some(self) -> None:
        batch = [self._asked.popleft() for _ in range(min(self._most, len(self._asked)))]
        try:
            answers = self._answer([question for question, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
