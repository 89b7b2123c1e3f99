"""Health of a loop's device: after a failure the device is asked for one token.

A request may fail by itself. A device may fail for ever, for example after a CUDA error that stays:
then every request fails at once, and a loop that only runs on would take them all.
"""

import time

from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch import Batch, BatchRow, fetched
from dipaco.serving.decoding.cache_pool import CachePool, text_key
from dipaco.serving.decoding.mixing import DecodeStep
from dipaco.serving.decoding.request_queue import GenerationRequest, Stream
from dipaco.serving.decoding.sampling import uniforms

FAILURES = 3  # trials in a row, without a token between them, that are a problem
RETRY_SECONDS = 5.0  # between trials while there is a problem and nothing else to do
TRIAL = GenerationRequest(prompt_ids=(0, 0), path=0, max_new_tokens=1)


class DeviceHealth:
    """Written by the loop's thread, read by any."""

    def __init__(self, pool: CachePool):
        self._pool, self.num_failed = pool, 0
        self._prepared: Parts = {}  # parameters for the next trial
        self._tried_seconds = 0.0  # when it last was

    @property
    def problem(self) -> str | None:
        """A sentence without its full stop. None = it makes tokens, as far as is known."""
        if self.num_failed < FAILURES:
            return None
        return "the device makes no tokens: request after request has failed, and a trial with each"

    def record_tokens(self) -> None:
        """It made some."""
        self.num_failed, self._prepared = 0, {}

    def idle(self, *, try_again: bool) -> float | None:
        """Longest time that the loop may wait for work. None = no limit. With a problem the device
        is tried again, as a balancer sends nothing to such a server: no request would show that the
        device makes tokens.
        """
        if self.problem is None:
            return None
        if try_again and time.monotonic() - self._tried_seconds >= RETRY_SECONDS:
            self.try_out(self._prepared)
        return RETRY_SECONDS if self.problem else None

    def try_out(self, prepared: Parts) -> None:
        """Makes a token with a path's parameters, in a free row. If it fails, the cache is lost. It
        is called at most once in an iteration of the loop: failures of one moment are one.
        """
        self._prepared, self._tried_seconds = prepared, time.monotonic()
        stream, tokens = Stream(TRIAL), list(TRIAL.prompt_ids)
        most = len(tokens) + TRIAL.max_new_tokens
        pool_row = self._pool.allocate(text_key(stream), tokens).pool_row
        batch = Batch(prepared)
        try:
            draws = uniforms(TRIAL.seed, most + self._pool.limits.steps_per_block)
            batch.rows.append(BatchRow(stream, pool_row, tokens, most, draws))
            self._pool.prefill(prepared, batch.rows)
            fetched(self._pool.start_block(DecodeStep([batch])), batch.rows)
            self.record_tokens()
        except Exception:
            self._pool.forget()
            self.num_failed += 1
        self._pool.free(pool_row, text_key(stream), [])
