"""Calls of several threads, computed in one batch. Calls during a batch make the next."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Input = TypeVar("Input")
Output = TypeVar("Output")


class MicroBatcher(Generic[Input, Output]):
    """Batches calls without a thread: one of the waiting callers computes for all.

    Args:
      function: 1 to `max_batch` inputs -> their outputs, in order.
      max_batch: inputs in one batch.
    """

    def __init__(self, function: Callable[[Sequence[Input]], Iterable[Output]], max_batch: int):
        self._function, self._max_batch = function, max_batch
        self._waiting: deque[tuple[Input, Future[Output]]] = deque()
        self._lock = threading.Lock()  # held by the caller that computes

    def compute(self, value: Input) -> Output:
        """Any thread. Raises what `function` raised for the batch of this input."""
        future: Future[Output] = Future()
        self._waiting.append((value, future))
        while not future.done():
            with self._lock:
                if not future.done():
                    self._compute_batch()
        return future.result()

    def _compute_batch(self) -> None:
        size = min(self._max_batch, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(size)]
        try:
            outputs = self._function([value for value, _ in batch])
            for (_, future), output in zip(batch, outputs, strict=True):
                future.set_result(output)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
