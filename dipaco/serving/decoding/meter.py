"""Counts and rates of a loop: the numbers behind `Loop.stats`."""

import collections
import time
from typing import NamedTuple

from dipaco.serving.decoding.request_queue import PathKey

RECENT = 100  # requests and blocks that rates are taken over
RATE_SECONDS = 60.0  # older blocks are in no speed


class LoopStats(NamedTuple):
    """The loop now, and its totals since it began."""

    num_waiting: int
    rows_per_path: dict[PathKey, int]  # (release, path) -> active requests
    num_requests: dict[str, int]  # finished, by reason
    num_tokens: int  # made
    num_prompt_tokens: int  # prefilled
    num_prompts_reused: int  # prompts with some or all tokens in the cache already
    # While it decodes: over the latest hundred blocks that ended in the last `RATE_SECONDS`. 0.0 =
    # there were none.
    tokens_per_second: float
    prefill_seconds: float  # total
    decode_seconds: float  # total
    first_token_seconds: float  # mean time from submit to first token, of the latest hundred
    num_paused: int = 0  # times a row was paused for another client
    num_replicas: int | None = None  # replicas that answer. None = the loop is of this process


class LoopMeter:
    """Written by the loop's thread, read by any."""

    def __init__(self):
        self.finished: collections.Counter[str] = collections.Counter()
        self.num_tokens = self.num_prompt_tokens = self.num_prompts_reused = 0
        self.num_paused = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        # (when it ended, its seconds, its tokens)
        self._blocks: collections.deque[tuple[float, float, int]] = collections.deque(maxlen=RECENT)
        self._first_tokens: collections.deque[float] = collections.deque(maxlen=RECENT)

    def record_finish(self, reason: str) -> None:
        self.finished[reason] += 1

    def record_prefill(self, num_tokens: int, seconds: float) -> None:
        self.num_prompt_tokens += num_tokens
        self.prefill_seconds += seconds

    def record_block(self, num_tokens: int, seconds: float) -> None:
        self.num_tokens += num_tokens
        self.decode_seconds += seconds
        self._blocks.append((time.monotonic(), seconds, num_tokens))

    def record_first_token(self, submitted_seconds: float) -> None:
        """A stream got its first token."""
        self._first_tokens.append(time.monotonic() - submitted_seconds)

    def stats(self, num_waiting: int, rows_per_path: dict[PathKey, int]) -> LoopStats:
        first_tokens, oldest = list(self._first_tokens), time.monotonic() - RATE_SECONDS
        blocks = [block for block in list(self._blocks) if block[0] > oldest]
        seconds = sum(seconds for _, seconds, _ in blocks)
        return LoopStats(
            num_waiting=num_waiting,
            rows_per_path=rows_per_path,
            num_requests=dict(self.finished),
            num_tokens=self.num_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            num_prompts_reused=self.num_prompts_reused,
            num_paused=self.num_paused,
            tokens_per_second=sum(tokens for *_, tokens in blocks) / seconds if seconds else 0.0,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            first_token_seconds=sum(first_tokens) / max(1, len(first_tokens)),
        )
