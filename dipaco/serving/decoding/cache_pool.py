"""The cache of all requests on the device, and the programs of `decode` run on it in fixed shapes.

A request has a *place*, its row of the pool. Places are given out longest free first, because what
a place holds stays good until somebody else gets it: a prompt that was read there need not be read
again for the next request that begins with it (`n` continuations of one prompt, a retry).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.model.config import ModelConfig
from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch import Batch, BatchRow, block_inputs, tokens_of
from dipaco.serving.decoding.decode import (
    DecodeBlock,
    buckets,
    copy_row,
    decode_block,
    gather_rows,
    make_pool,
    prefill,
    score,
    smallest_fitting,
)
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.stream import Token
from dipaco.serving.decoding.waiting_requests import PathKey

READ_TOGETHER = (8, 1)  # prompts of one path that one program reads
SMALLEST_PROMPT = 16  # tokens; the smallest bucket of prompts

Held = tuple[PathKey, tuple[int, ...]]  # a path, and the tokens it has read at a place


class RowAssignment(NamedTuple):
    """What a new request needs before its first block."""

    place: int
    source: int | None  # the place that holds its prompt already; None = it must be read


class CachePool:
    """See the module. Only the loop's thread uses it."""

    def __init__(self, config: ModelConfig, limits: LoopLimits):
        self.config, self.limits = config, limits
        self._row_sizes = limits.row_sizes
        self._slot_sizes = buckets(limits.smallest_slots, config.max_length)
        self._prompt_sizes = buckets(SMALLEST_PROMPT, config.max_length)
        self._spare = limits.rows
        self._cache: Any = None
        self.clear()

    def clear(self) -> None:
        """Forgets everything: no place is in use, and the cache is made anew when it is needed."""
        self._cache = None
        self._free = list(range(self.limits.rows))  # the longest free first
        self._places: dict[Held, int] = {}
        self._held: dict[int, Held] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def enter(self, path: PathKey, prompt_ids: Sequence[int]) -> RowAssignment:
        """A place for a request. All but the last token of its prompt must be in the cache."""
        held = path, tuple(prompt_ids[:-1])
        source = self._places.get(held)
        if source in self._free:
            self._free.remove(source)
            return RowAssignment(source, source)
        place = self._free.pop(0)
        if (former := self._held.pop(place, None)) and self._places.get(former) == place:
            del self._places[former]
        self._held[place] = held
        self._places.setdefault(held, place)
        return RowAssignment(place, source if held[1] else place)

    def leave(self, place: int) -> None:
        """The request at this place is done."""
        self._free.append(place)

    def size_of_prompt(self, prompt_ids: Sequence[int]) -> int:
        """Tokens that reading it costs, padding included."""
        return smallest_fitting(self._prompt_sizes, len(prompt_ids) - 1)

    def prefill(self, prepared: Parts, rows: Sequence[BatchRow]) -> None:
        """Reads the prompts of some rows of one path, equal sizes together."""
        by_size: dict[int, list[BatchRow]] = {}
        for row in rows:
            by_size.setdefault(self.size_of_prompt(row.tokens), []).append(row)
        for size, alike in by_size.items():
            while alike:
                number = next(n for n in self._together(size) if n <= len(alike))
                together, alike = alike[:number], alike[number:]
                tokens_BT = np.zeros((number, size), np.int32)
                for index, row in enumerate(together):
                    tokens_BT[index, : len(row.tokens) - 1] = row.tokens[:-1]
                self._read(prepared, tokens_BT, [row.place for row in together])

    def copy(self, entry: RowAssignment) -> None:
        """Puts what a request needs to its place, from where it is."""
        assert entry.source is not None
        if entry.source != entry.place:
            self._copy(entry.source, entry.place)

    def score(self, prepared: Parts, prompt_ids: Sequence[int], num_logprobs: int) -> list[Token]:
        """How likely each token of a prompt was; the first follows nothing."""
        tokens_1T = self._whole_context()
        tokens_1T[0, : len(prompt_ids)] = prompt_ids
        made = jax.device_get(score(self.config, prepared, tokens_1T))
        likely = tokens_of(made, 0, num_logprobs)[1 : len(prompt_ids)]
        return [Token(prompt_ids[0]), *likely]

    def start_block(self, batch: Batch) -> DecodeBlock:
        """Has the rows of a batch make tokens; what comes back is still being computed."""
        longest = max(len(row.tokens) for row in batch.rows)
        return self._make_block(
            batch,
            smallest_fitting(self._row_sizes, len(batch.rows)),
            smallest_fitting(self._slot_sizes, longest - 1 + self.limits.steps_per_block),
        )

    def warm_up(self, prepared: Parts) -> None:
        """Runs every program in every shape, on the spare row."""
        for size in self._prompt_sizes:
            for number in self._together(size):
                self._read(prepared, np.zeros((number, size), np.int32), [self._spare] * number)
        score(self.config, prepared, self._whole_context())
        self._copy(self._spare, self._spare)
        for num_rows in self._row_sizes:
            for slots in self._slot_sizes:
                self._make_block(Batch(prepared), num_rows, slots)
        self.wait()

    def wait(self) -> None:
        """Until the device has done what it was given."""
        jax.block_until_ready(self._cache)

    def _whole_context(self) -> np.ndarray:
        """Room for any prompt: it is seldom scored, so it is not worth a program for each size."""
        return np.zeros((1, self.config.max_length), np.int32)

    def _together(self, size: int) -> Iterator[int]:
        """How many prompts of a size are read by one program, most first."""
        most = min(self.limits.rows_per_path, self.limits.prompt_tokens_per_turn // size)
        return (number for number in READ_TOGETHER if number <= max(1, most))

    def _read(self, prepared: Parts, tokens_BT: np.ndarray, places: Sequence[int]) -> None:
        self._begin(prepared)
        places_B = np.array(places, np.int32)
        self._cache = prefill(self.config, prepared, self._cache, tokens_BT, places_B)

    def _copy(self, source: int, target: int) -> None:
        self._cache = copy_row(self._cache, np.int32(source), np.int32(target))

    def _make_block(self, batch: Batch, num_rows: int, slots: int) -> DecodeBlock:
        self._begin(batch.prepared)
        inputs = block_inputs(batch.rows, num_rows, slots, self.limits.steps_per_block, self._spare)
        taken_for = inputs["rows_B"].tolist(), slots
        if batch.taken_for != taken_for:
            batch.taken = None  # before what replaces it is made: memory
            batch.taken = gather_rows(self._cache, inputs["rows_B"], slots)
            batch.taken_for = taken_for
        made, self._cache, batch.taken = decode_block(
            self.config,
            batch.prepared,
            self._cache,
            batch.taken,
            **inputs,
        )
        return made

    def _begin(self, prepared: Parts) -> None:
        if self._cache is None:
            # On the device of the parameters, by name: an array that stands somewhere by default
            # only is another kind of argument, and would compile every program twice.
            device = jax.tree.leaves(prepared)[0].sharding
            self._cache = jax.device_put(make_pool(self.config, self.limits.rows), device)
