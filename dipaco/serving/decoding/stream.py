"""A generation request, its tokens and its end."""

import dataclasses
import queue
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from dipaco.serving.decoding.sampling import SamplingSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One continuation of one prompt."""

    prompt_ids: tuple[int, ...]
    path: int  # chosen by dispatch
    num_given: int | None = None  # of the prompt's ids; the rest it made itself. None = all
    release: str = ""  # digest of the release it was routed in; it finishes on those modules
    max_new_tokens: int
    sampling: SamplingSettings = SamplingSettings()
    client: str = ""  # who asks: clients share rows equally
    seed: int = 0  # of its draws, 0 or more
    stop_ids: frozenset[int] = frozenset()  # tokens that end it; the last token of the stream
    min_new_tokens: int = 0  # before it may end by one of them
    num_logprobs: int | None = None  # None = none; k = the chosen token's and the k likeliest
    schema: str | None = None  # JSON schema that the text obeys (`grammar`); None = any text
    prompt_logprobs: bool = False  # also of the prompt's own tokens (`echo`)


class Token(NamedTuple):
    """One token with its log-probabilities, in nats, before temperature, cuts and penalty.

    The first token of a prompt has none.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # the likeliest (id, logprob), best first


class Finish(NamedTuple):
    """The end of a stream."""

    reason: Literal["stop", "length", "cancelled", "error"]
    error: Exception | None = None


OnItems = Callable[[Sequence[Token | Finish]], None]  # tokens that came together, or the end


class Stream:
    """The tokens of one request, then a `Finish`. Any thread may read and cancel."""

    def __init__(self, request: GenerationRequest, on_items: OnItems | None = None):
        self.request = request
        self.prompt_logprobs: list[Token] | None = None  # set before the first token comes
        self.made_ids: list[int] = []  # before it was last paused; the loop's own
        self.submitted_seconds = time.monotonic()
        self.row_seconds: float | None = None  # when it first got a row; set before its tokens come
        self.is_cancelled = False
        self._items: queue.SimpleQueue[Token | Finish] = queue.SimpleQueue()
        self._on_items = on_items or self._keep

    @property
    def is_to_be_scored(self) -> bool:
        """Whether log-probabilities of its prompt are asked for, and not there yet."""
        return self.request.prompt_logprobs and self.prompt_logprobs is None

    def get(self, timeout_seconds: float | None = None) -> Token | Finish:
        """The next token, or the end. Only for a stream without `on_items`.

        Raises:
          queue.Empty: none came in time.
        """
        return self._items.get(timeout=timeout_seconds)

    def cancel(self) -> None:
        """Frees its row before the next block; the stream then ends with `cancelled`."""
        self.is_cancelled = True

    def put(self, items: Sequence[Token | Finish]) -> None:
        """Called by the loop. A callback that raises cancels its own stream and no other."""
        try:
            self._on_items(items)
        except Exception:
            self.is_cancelled = True

    def _keep(self, items: Sequence[Token | Finish]) -> None:
        for item in items:
            self._items.put(item)
