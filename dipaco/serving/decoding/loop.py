"""The serving loop: requests join and leave between blocks of steps, path by path.

An iteration admits waiting requests, prefills their prompts, and decodes a block of tokens for
every active row. Rows of several paths share their steps if that is faster (`mixing`). The device
gets all blocks before the host reads the first, so it computes while tokens are handed out. Rows
are independent and a row draws with its own seed, so a request gets the same tokens alone and in a
batch, except where rounding decides: products of other shapes differ in the last bits (2e-6 in a
log-probability).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

from dipaco.model.config import ModelConfig
from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch import Batch, BatchRow, fetched, grammar_of, tokens_of
from dipaco.serving.decoding.cache_pool import CachePool, RowAssignment, text_key
from dipaco.serving.decoding.decode import DecodeBlock, LoopLimits, check_fits
from dipaco.serving.decoding.device_health import DeviceHealth
from dipaco.serving.decoding.grammar import Grammars, GrammarState
from dipaco.serving.decoding.mixing import DecodeStep, LevelShape
from dipaco.serving.decoding.request_queue import (
    Finish,
    GenerationRequest,
    OnItems,
    PathKey,
    RequestQueue,
    RowShares,
    Stream,
    Token,
    key_of,
)
from dipaco.serving.decoding.sampling import uniforms
from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.fairness import GrammarTurn
from dipaco.serving.warm_up import WarmUp, WarmUpProgram

log = logging.getLogger(__name__)


class LoopStats(NamedTuple):
    """The loop now, and its totals since it began."""

    num_waiting: int = 0
    rows_per_path: Mapping[PathKey, int] = MappingProxyType({})  # active requests
    num_tokens: int = 0  # made
    num_prompt_tokens: int = 0  # prefilled
    num_prompts_reused: int = 0  # prompts with some or all tokens in the cache already
    num_paused: int = 0  # times a row was paused for another client
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_replicas: int | None = None  # replicas that answer. None = the loop is of this process


class Loop:
    """Continuous batching over the paths of one or several releases."""

    def __init__(
        self,
        config: ModelConfig,
        parts_of: Callable[[Any], AbstractContextManager[Parts]],
        *,
        limits: LoopLimits | None = None,
        levels: Sequence[LevelShape] | None = None,
        grammars: Grammars | None = None,
    ):
        """
        Args:
          config: sizes, the same for every path.
          parts_of: the modules of a request -> a context that gives its path's parameters, prepared
            (`model.inference.prepare`), and keeps them on the device while it is open. If it raises
            `NoRoomForPath`, the request waits until another path is done. Any other error ends the
            request.
          levels: of the paths, which share modules as the same objects. None: no two share a step.
          grammars: the vocabulary to draw from, and the schemas of requests. None = there are no
            schemas, and each id of the model is a token.
        """
        self._grammars = grammars
        self.config, self.limits = config, limits or LoopLimits()
        self._parts_of = parts_of
        self._queue = RequestQueue()
        self._thread: threading.Thread | None = None
        # The fields below belong to the loop's thread.
        tokens_W = None if grammars is None else grammars.tokens_W
        self._pool = CachePool(config, self.limits, levels, tokens_W)
        self.device_health, self.mixer = DeviceHealth(self._pool), self._pool.mixer
        self._batches: dict[PathKey, Batch] = {}
        self._totals, self._grammar_turn = LoopStats(), GrammarTurn()
        self._warm_up = WarmUp()

    # --- any thread ---------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, on_items: OnItems | None = None) -> Stream:
        """Puts a request into the queue. Its tokens of each block, and then the `Finish`, are given
        to `on_items` in the loop's thread, which must return at once. None: read `Stream.get`.
        Raises `LoopStopping`, and as `check_fits`.
        """
        check_fits(self.config, request.prompt_ids)
        stream = Stream(request, on_items)
        self._queue.put(stream)
        return stream

    @property
    def capacity(self) -> int:
        """Requests, active and waiting, that its senders may give it at once. The loop refuses
        none: whoever lets requests in counts them.
        """
        return self.limits.rows + self.limits.waiting

    def stats(self) -> LoopStats:
        """A snapshot of the loop. Its numbers may be an iteration apart."""
        rows_per_path = {key: len(batch.rows) for key, batch in list(self._batches.items())}
        return self._totals._replace(num_waiting=len(self._queue), rows_per_path=rows_per_path)

    def run(self) -> None:
        """Starts the loop's thread."""
        self._thread = threading.Thread(target=self._run, name="serving-loop", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True if its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def problem(self) -> str | None:
        """The reason why it makes no tokens, in words. None = it can."""
        return self.device_health.problem if self.is_alive else "the serving loop has ended"

    def stop(self, drain_seconds: float) -> None:
        """Takes no more requests, finishes those it has, and ends the thread.

        Requests that have not finished after `drain_seconds` end as `cancelled`.
        """
        self._queue.stop(drain_seconds)
        if self._thread is not None:
            self._thread.join()
        self._cancel(lambda stream: True)

    # --- the loop's thread, or a test that calls `run_once` -----------------------------------

    def warm_up(
        self, prepared: Parts, warm_up: WarmUp | None = None, first: Sequence[WarmUpProgram] = ()
    ) -> None:
        """Compiles what any load needs, with any path's parameters, after others' programs. What a
        brief warm-up leaves is compiled while there is nothing to do.
        """
        self._warm_up = warm_up or WarmUp()
        self._warm_up.run([*first, *self._pool.programs(prepared)])
        self._pool.wait()

    def run_once(self) -> bool:
        """One iteration: admit, prefill, decode a block for every row. False = nothing to do."""
        self._cancel(lambda stream: stream.is_cancelled)
        try:
            did_admit = self._admit()
            self._close_empty_batches()  # a path's only row may have been paused
            started = time.monotonic()
            steps = self.mixer.divide(self._batches)
            blocks = [(step, self._pool.start_block(step)) for step in steps]
            num_tokens = self._hand_out(blocks)
        except Exception as error:
            log.warning("a step failed; its requests go on one by one", exc_info=error)
            self._go_on_alone()
            self._close_empty_batches()
            return True
        if blocks:
            self._count(num_tokens=num_tokens, decode_seconds=time.monotonic() - started)
            if self.device_health.num_failed:
                self.device_health.record_tokens()
        self._close_empty_batches()
        return bool(blocks) or did_admit

    def _run(self) -> None:
        is_on = True
        while is_on:
            did_something = self.run_once() or (not self._batches and self._warm_up.go_on())
            idle_seconds = None
            if self.device_health.num_failed:
                idle_seconds = self.device_health.idle(try_again=not did_something)
            is_on = self._queue.wait_for_work(
                has_rows=bool(self._batches), did_something=did_something, idle_seconds=idle_seconds
            )

    def _count(self, **more: float) -> None:
        """Adds to totals, by name."""
        totals = {name: getattr(self._totals, name) + number for name, number in more.items()}
        self._totals = self._totals._replace(**totals)

    # --- admission ----------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Gives free rows to waiting requests and prefills their prompts."""
        new: list[tuple[Batch, BatchRow, RowAssignment]] = []  # not in the cache yet
        new_rows: list[BatchRow] = []  # rows of this iteration, which are not paused in it
        blocked: set[PathKey] = set()
        token_budget = self.limits.prompt_tokens_per_iteration
        self._grammar_turn.begin()
        while token_budget > 0 and not self._grammar_turn.is_over:
            rows = {key: batch.rows for key, batch in self._batches.items()}
            shares = RowShares(rows, self.limits, self._pool.num_free, new_rows, blocked)
            if (stream := self._queue.next(shares)) is None:
                break
            if stream.is_cancelled:
                stream.put([Finish("cancelled")])  # in this very iteration
                continue
            try:
                batch = self._batch_of(stream)
            except NoRoomForPath:
                blocked.add(key_of(stream))
                self._queue.put_back(stream)
                continue
            except Exception as error:
                stream.put([Finish("error", error)])
                continue
            try:
                if paused := shares.to_pause(stream):
                    # First, as a new row's prompt may be copied from the one that is paused.
                    self._prefill(new)
                    new = []
                    self._pause(paused.stream)
            except Exception:
                self._queue.put_back(stream)  # the whole step fails, and it waits for the next
                raise
            try:
                with self._grammar_turn.charged(stream.request.client):
                    grammar, finish = grammar_of(stream, self._grammars), None
            except Exception as error:
                grammar, finish = None, Finish("error", error)
            if grammar is not None and grammar.is_complete:
                finish = Finish("stop")  # tokens that it made before ended it
            if finish is not None:
                self._close_empty_batches()
                stream.put([finish])
                continue
            try:
                row, assignment = self._add_row(batch, stream, grammar)
            except Exception as error:
                stream.put([Finish("error", error)])
                raise  # a copy that failed may have consumed the cache
            new.append((batch, row, assignment))
            new_rows.append(row)
            token_budget -= self._pool.num_computed(row.tokens, assignment.num_cached)
            if stream.is_to_be_scored:
                token_budget -= self.config.max_length  # one program for prompts of any length
        self._prefill(new)
        return bool(new_rows)

    def _batch_of(self, stream: Stream) -> Batch:
        if (key := key_of(stream)) not in self._batches:
            pinned = contextlib.ExitStack()
            parts = pinned.enter_context(self._parts_of(stream.request.modules))
            self._batches[key] = Batch(parts, pinned)
        return self._batches[key]

    def _add_row(
        self, batch: Batch, stream: Stream, grammar: GrammarState | None
    ) -> tuple[BatchRow, RowAssignment]:
        request = stream.request
        max_tokens = len(request.prompt_ids) + request.max_new_tokens
        max_tokens = min(max_tokens, self.config.max_length)
        row_uniforms = uniforms(request.seed, max_tokens + self.limits.steps_per_block)
        tokens = [*request.prompt_ids, *stream.made_ids]
        assignment = self._pool.allocate(text_key(stream), tokens)
        row = BatchRow(stream, assignment.pool_row, tokens, max_tokens, row_uniforms, grammar)
        batch.rows.append(row)
        if stream.row_seconds is None:
            stream.row_seconds = time.monotonic()
        return row, assignment

    def _pause(self, stream: Stream) -> None:
        """Puts an active request back into the queue. It continues later with the same text."""
        batch = self._batches[key_of(stream)]
        row = next(row for row in batch.rows if row.stream is stream)
        batch.rows.remove(row)
        self._free(row)
        stream.made_ids = row.tokens[len(stream.request.prompt_ids) :]
        self._count(num_paused=1)
        self._queue.put_back(stream)

    def _prefill(self, new: Sequence[tuple[Batch, BatchRow, RowAssignment]]) -> None:
        """Puts the prompts of new rows into the cache."""
        started, num_tokens = time.monotonic(), 0
        for batch in {id(batch): batch for batch, _, _ in new}.values():
            its_rows = [(row, assigned) for owner, row, assigned in new if owner is batch]
            rows = [row for row, assigned in its_rows if not assigned.num_cached]
            self._pool.prefill(batch.prepared, rows)
        for batch, row, assignment in new:
            # After the others and in this order: what it is copied from may be new as well.
            if assignment.num_cached:
                self._pool.read_rest(batch.prepared, row.tokens, assignment)
                self._count(num_prompts_reused=1)
            num_tokens += len(row.tokens) - 1 - assignment.num_cached
            self._score_prompt(batch, row)
        if new:
            self._pool.wait()
            seconds = time.monotonic() - started
            self._count(num_prompt_tokens=num_tokens, prefill_seconds=seconds)

    def _score_prompt(self, batch: Batch, row: BatchRow) -> None:
        request = row.stream.request
        if row.stream.is_to_be_scored:
            row.stream.prompt_logprobs = self._pool.score(
                batch.prepared, request.prompt_ids, request.num_logprobs or 0
            )

    # --- tokens and ends ----------------------------------------------------------------------

    def _hand_out(self, blocks: Sequence[tuple[DecodeStep, DecodeBlock]]) -> int:
        """Gives rows their tokens of some blocks. Returns how many were used.

        Rows with a grammar come last, those of the client whose grammars took least before others.
        Once their turn is over, the rest take nothing: the next block makes their tokens again.
        """
        num_tokens, with_grammar = 0, []
        for step, block in blocks:
            rows = [(batch, row) for batch in step.batches for row in batch.rows]
            block = fetched(block, [row for _, row in rows])
            for index, (batch, row) in enumerate(rows):
                tokens = tokens_of(block, index, row.stream.request.num_logprobs)
                if row.grammar is None:
                    num_tokens += self._hand_to(row, batch, step, tokens)
                else:
                    with_grammar.append((row, batch, step, tokens))
        self._grammar_turn.begin()
        for row, batch, step, tokens in self._grammar_turn.in_order(with_grammar, _client_of):
            if self._grammar_turn.is_over:
                self._pool.take_back(step, row)
                continue
            with self._grammar_turn.charged(row.stream.request.client):
                num_tokens += self._hand_to(row, batch, step, tokens)
        return num_tokens

    def _hand_to(self, row: BatchRow, batch: Batch, step: DecodeStep, tokens: list[Token]) -> int:
        num_taken, finish = row.put(tokens)
        if finish:
            self._remove_row(batch, row, finish)
        elif num_taken < len(tokens):
            self._pool.take_back(step, row)
        return num_taken

    def _go_on_alone(self) -> None:
        """After a failure: each row is read again and makes its next tokens alone. So one that
        fails alone ends with its error, and the others go on, with the same text.
        """
        rest, failed = self._forget_cache(), None
        while rest:
            batch, row = rest.pop(0)
            alone, has_failed = Batch(batch.prepared), False
            step = DecodeStep([alone])
            alone.rows.append(row)
            try:
                self._pool.prefill(batch.prepared, [row])
                self._score_prompt(batch, row)
                self._hand_out([(step, self._pool.start_block(step))])
                self.device_health.record_tokens()
            except Exception as error:
                self._remove_row(alone, row, Finish("error", error))
                has_failed = True
            if not alone.rows:  # it has ended
                batch.rows.remove(row)
            if has_failed:
                rest, failed = self._forget_cache(), batch.prepared
        if failed is not None:
            self.device_health.try_out(failed)

    def _forget_cache(self) -> list[tuple[Batch, BatchRow]]:
        """Drops the cache, which a failed program consumed. Returns the rows to read again."""
        self._pool.forget()
        for batch in self._batches.values():
            batch.memory.drop()
        return [(batch, row) for batch in self._batches.values() for row in batch.rows]

    def _cancel(self, is_to_end: Callable[[Stream], bool]) -> None:
        for stream in self._queue.take(is_to_end):
            stream.put([Finish("cancelled")])
        for batch in list(self._batches.values()):
            for row in [row for row in batch.rows if is_to_end(row.stream)]:
                self._remove_row(batch, row, Finish("cancelled"))
        self._close_empty_batches()

    def _remove_row(self, batch: Batch, row: BatchRow, finish: Finish) -> None:
        batch.rows.remove(row)
        self._free(row, has_failed=finish.reason == "error")
        if not batch.rows:
            self._close_empty_batches()  # before a client that hears of it asks for another path
        row.stream.put([finish])

    def _free(self, row: BatchRow, has_failed: bool = False) -> None:
        read = [] if has_failed else row.tokens[: -row.num_unread]
        self._pool.free(row.pool_row, text_key(row.stream), read)

    def _close_empty_batches(self) -> None:
        """Unpins paths without active rows."""
        if empty := [key for key, batch in self._batches.items() if not batch.rows]:
            for key in empty:
                self._batches.pop(key).close()
            self._pool.drop_others({release for release, _ in self._batches})


def _client_of(one: tuple[BatchRow, Batch, DecodeStep, list[Token]]) -> str:
    return one[0].stream.request.client
