"""The cache of all requests on the device, and the programs of `decode` run on it in fixed shapes.

A request has a row of the pool. Rows are reused longest free first, because a free row keeps its
content: of a prompt that begins as a text in the cache does, only the rest is read (`n`
continuations of one prompt, a retry, the next message of a chat).
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.model.config import ModelConfig
from dipaco.model.mixed import MixedParts
from dipaco.model.spec import Parts
from dipaco.plural import counted
from dipaco.serving.decoding import decode
from dipaco.serving.decoding.batch import (
    BatchRow,
    GatheredRows,
    StepMemory,
    block_inputs,
    plan_block,
    tokens_of,
)
from dipaco.serving.decoding.grammar import all_allowed
from dipaco.serving.decoding.mixing import (
    DecodeStep,
    LevelShape,
    Mixer,
    ModuleStacks,
    StepKind,
    StepShape,
)
from dipaco.serving.decoding.request_queue import PathKey, Stream, Token, key_of
from dipaco.serving.warm_up import WarmUpProgram


class Beginning(NamedTuple):
    """The row whose text begins most like a prompt."""

    pool_row: int
    length: int  # tokens that are the same
    is_all: bool  # True if that is the row's whole text


TextKey = tuple[PathKey, str]  # what may share a beginning: a path's texts with the same salt


class CachedTexts:
    """The tokens that rows have in the cache, and whose they are. A client with another salt would
    learn from the time of a first token what others have asked.

    A row keeps its content when its request ends: prompt and answer. The next message of a chat
    begins with both, so only its new tokens are read. The longest common beginning is found token
    by token: there are as many texts as rows, and comparing a thousand tokens takes two
    microseconds.
    """

    def __init__(self):
        self._texts: dict[int, tuple[TextKey, np.ndarray]] = {}

    def put(self, pool_row: int, key: TextKey, tokens: Sequence[int]) -> None:
        """The row now has these tokens, from its first slot on."""
        self._texts[pool_row] = key, np.array(tokens, np.int32)

    def longest(
        self, key: TextKey, tokens: Sequence[int], free: Collection[int]
    ) -> Beginning | None:
        """The row of a key with the most of a prompt, of equals one that can be taken as it is."""
        wanted = np.array(tokens, np.int32)
        found = [
            Beginning(row, length, length == len(text))
            for row, (owner, text) in self._texts.items()
            if owner == key and (length := _num_common(text, wanted))
        ]
        best = lambda each: (each.length, each.is_all and each.pool_row in free)  # noqa: E731
        return max(found, key=best, default=None)


def text_key(stream: Stream) -> TextKey:
    """The key of a request's text."""
    return key_of(stream), stream.request.cache_salt


def _num_common(a: np.ndarray, b: np.ndarray) -> int:
    shortest = min(len(a), len(b))
    differs = a[:shortest] != b[:shortest]
    return int(np.argmax(differs)) if differs.any() else shortest


PREFILL_BATCH_SIZES = (8, 1)  # prompts of one path that one program prefills
SMALLEST_PROMPT = 16  # tokens: the smallest bucket of prompts
FIRST_PROMPT = 64  # tokens of the longest prompt whose programs are compiled before any request


class RowAssignment(NamedTuple):
    """The row of a new request, and the part of its text that is in the cache."""

    pool_row: int
    source_row: int  # row of another active request, still to be copied into this one
    num_cached: int  # number of its first tokens that are then there


class CachePool:
    """See the module. Only the loop's thread uses it."""

    def __init__(
        self,
        config: ModelConfig,
        limits: decode.LoopLimits,
        levels: Sequence[LevelShape] | None = None,
        tokens_W: np.ndarray | None = None,
    ):
        self.config, self.limits = config, limits
        self._tokens_W = all_allowed(1, config.vocab_size)[0] if tokens_W is None else tokens_W
        self.mixer = Mixer(config, levels, limits)
        self._row_sizes = limits.row_sizes
        self._prompt_sizes = decode.buckets(SMALLEST_PROMPT, config.max_length)
        self._spare = limits.rows
        self._free = list(range(self.limits.rows))  # the longest free first
        self.forget()

    def forget(self) -> None:
        """Forgets what is cached, until the cache is next needed. Rows in use stay in use."""
        self._cache: Any = None
        self._gathered: list[GatheredRows] = []  # those with a cache, the longest held first
        # Memory of common steps, by slots.
        self._of_several: dict[tuple[StepKind, int], StepMemory] = {}
        self._stacks = ModuleStacks()
        self._texts = CachedTexts()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, key: TextKey, tokens: Sequence[int]) -> RowAssignment:
        """A row for a request. All but the last of its tokens must be in the cache."""
        needed = tokens[:-1]
        found = self._texts.longest(key, needed, self._free)
        if found is None or not self._is_worth_it(found.length, len(needed)):
            pool_row = source = self._free.pop(0)
            num_cached = 0
        else:
            source, num_cached, is_all = found
            is_free = source in self._free
            pool_row = source if is_free and is_all else self._free[0]
            if is_free and source != pool_row:
                # Now, as the next request may get that row.
                self._copy(source, pool_row)
                source = pool_row
            self._free.remove(pool_row)
        self._texts.put(pool_row, key, needed)
        return RowAssignment(pool_row, source, num_cached)

    def free(self, pool_row: int, key: TextKey, tokens: Sequence[int]) -> None:
        """Ends the request in this row. The row has these tokens of it, and keeps them."""
        self._free.append(pool_row)
        self._texts.put(pool_row, key, tokens)

    def num_computed(self, tokens: Sequence[int], num_cached: int) -> int:
        """Tokens that are computed to read the rest of a text, padding included."""
        rest = len(tokens) - 1 - num_cached
        return decode.smallest_fitting(self._prompt_sizes, rest) if rest > 0 else 0

    def _is_worth_it(self, num_cached: int, num_needed: int) -> bool:
        """True if reading the rest is less work than reading all."""
        if num_cached == num_needed:
            return True
        rest = decode.smallest_fitting(self._prompt_sizes, num_needed - num_cached)
        return rest < decode.smallest_fitting(self._prompt_sizes, num_needed)

    def prefill(self, prepared: Parts, rows: Sequence[BatchRow]) -> None:
        """Prefills the prompts of some rows of one path, equal sizes in one batch."""
        by_size: dict[int, list[BatchRow]] = {}
        for row in rows:
            if len(row.tokens) == 1:  # its only token begins its first block
                continue
            by_size.setdefault(self.num_computed(row.tokens, 0), []).append(row)
        for size, rest in by_size.items():
            while rest:
                number = next(n for n in self._prefill_batch_sizes(size) if n <= len(rest))
                batch, rest = rest[:number], rest[number:]
                tokens_BT = np.zeros((number, size), np.int32)
                for index, row in enumerate(batch):
                    tokens_BT[index, : len(row.tokens) - 1] = row.tokens[:-1]
                self._prefill(prepared, tokens_BT, [row.pool_row for row in batch])

    def read_rest(self, prepared: Parts, tokens: Sequence[int], assignment: RowAssignment) -> None:
        """Reads the tokens of a text that are not yet in its row."""
        pool_row, source, start = assignment
        if source != pool_row:
            self._copy(source, pool_row)
        if start < len(tokens) - 1:
            size = self.num_computed(tokens, start)
            # The last tokens that are there are read again if padding would cross the end.
            start = min(start, self.config.max_length - size)
            tokens_1T = np.zeros((1, size), np.int32)
            tokens_1T[0, : len(tokens) - 1 - start] = tokens[start:-1]
            self._read_on(prepared, tokens_1T, pool_row, start)

    def score(self, prepared: Parts, prompt_ids: Sequence[int], num_logprobs: int) -> list[Token]:
        """The prompt's tokens with their log-probabilities. The first has none."""
        tokens_1T = self._whole_context()
        tokens_1T[0, : len(prompt_ids)] = prompt_ids
        block = jax.device_get(decode.score_prompt(self.config, prepared, tokens_1T))
        scored = tokens_of(block, 0, num_logprobs)[1 : len(prompt_ids)]
        return [Token(prompt_ids[0]), *scored]

    def start_block(self, step: DecodeStep) -> decode.DecodeBlock:
        """Starts a block of tokens for the rows of a step. The result is still being computed."""
        rows = [row for batch in step.batches for row in batch.rows]
        if step.common is None:
            (batch,) = step.batches
            num_rows, parts = decode.smallest_fitting(self._row_sizes, len(rows)), batch.prepared
            slots = self.mixer.slots(step.batches)
        else:
            _, shape, slots = step.common
            num_rows, parts = shape.num_rows, self.mixer.parts(step, self._stacks)
        return self._run_block(parts, rows, self._memory_of(step), num_rows, slots)

    def take_back(self, step: DecodeStep, row: BatchRow) -> None:
        """Says that a row did not take all the tokens of its step's block: those are made again."""
        self._memory_of(step).gathered.take_back(row)

    def drop_others(self, releases: Collection[str]) -> None:
        """Frees what common steps have left of releases but these."""
        for key in [key for key in self._of_several if key[0].release not in releases]:
            self._of_several.pop(key).drop()

    def _memory_of(self, step: DecodeStep) -> StepMemory:
        if step.common is None:
            (batch,) = step.batches
            return batch.memory
        kind, _, slots = step.common
        return self._of_several.setdefault((kind, slots), StepMemory())

    def programs(self, prepared: Parts) -> list[WarmUpProgram]:
        """Every program in every shape, on the spare row. They must run in this order. The first of
        each kind come first, for a single short request.
        """
        programs: list[WarmUpProgram] = []

        def add(
            name: str, function: Callable[..., object], *arguments: object, is_first: bool = False
        ) -> None:
            run = functools.partial(function, *arguments)
            programs.append(WarmUpProgram(name, run, is_first))

        def run_block(num_rows: int, slots: int, shape: StepShape | None = None) -> None:
            parts = prepared
            if shape is not None:
                parts = self.mixer.parts_of([prepared], shape, "", ModuleStacks())
            self._run_block(parts, [], StepMemory(), num_rows, slots)

        for size in self._prompt_sizes:
            for number in self._prefill_batch_sizes(size):
                rest = prepared, np.zeros((number, size), np.int32), [self._spare] * number
                name = f"prefill of {number} x {size} tokens"
                add(name, self._prefill, *rest, is_first=number == 1 and size <= FIRST_PROMPT)
        for size in self._prompt_sizes[:-1]:
            rest = prepared, np.zeros((1, size), np.int32), self._spare, 0
            add(f"reading {size} more tokens", self._read_on, *rest)
        add("scoring a prompt", decode.score_prompt, self.config, prepared, self._whole_context())
        add("copying a row", self._copy, self._spare, self._spare)
        for num_rows, slots in itertools.product(self._row_sizes, self.mixer.slot_sizes):
            name = f"decoding {counted(num_rows, 'row')} of {slots} tokens"
            is_first = (num_rows, slots) == (self._row_sizes[0], self.mixer.slot_sizes[0])
            add(name, run_block, num_rows, slots, is_first=is_first)
        for shape, slots in itertools.product(self.mixer.shapes, self.mixer.slot_sizes):
            how = f"spread {shape.spread.value}" + ", in stacks" * shape.has_stacks
            name = f"decoding {shape.num_rows} rows of {slots} tokens on several paths, {how}"
            add(name, run_block, shape.num_rows, slots, shape)
        return programs

    def wait(self) -> None:
        """Waits until the device has finished."""
        jax.block_until_ready(self._cache)

    def _whole_context(self) -> np.ndarray:
        """Space for any prompt: scoring is rare, so one program for the largest size is enough."""
        return np.zeros((1, self.config.max_length), np.int32)

    def _prefill_batch_sizes(self, size: int) -> Iterator[int]:
        """The numbers of prompts of a size that one program may prefill, largest first."""
        most = min(self.limits.rows_per_path, self.limits.prompt_tokens_per_iteration // size)
        return (number for number in PREFILL_BATCH_SIZES if number <= max(1, most))

    def _prefill(self, prepared: Parts, tokens_BT: np.ndarray, pool_rows: Sequence[int]) -> None:
        self._allocate_cache(prepared)
        rows_B = np.array(pool_rows, np.int32)
        self._cache = decode.prefill(self.config, prepared, self._cache, tokens_BT, rows_B)

    def _read_on(self, prepared: Parts, tokens_1T: np.ndarray, pool_row: int, start: int) -> None:
        self._allocate_cache(prepared)
        row, start_ = np.int32(pool_row), np.int32(start)
        self._cache = decode.read_on(self.config, prepared, self._cache, tokens_1T, row, start_)

    def _copy(self, source: int, target: int) -> None:
        self._cache = decode.copy_row(self._cache, np.int32(source), np.int32(target))

    def _run_block(
        self,
        parts: Parts | MixedParts,
        rows: Sequence[BatchRow],
        memory: StepMemory,
        num_rows: int,
        slots: int,
    ) -> decode.DecodeBlock:
        device = self._allocate_cache(parts)
        plan = plan_block([row.grammar for row in rows], num_rows, self.limits.steps_per_block)
        inputs = block_inputs(rows, plan, slots) | memory.inputs.of(
            rows, num_rows, spare=self._spare, tokens_W=self._tokens_W, device=device
        )
        shape, gathered = (num_rows, slots), memory.gathered
        if not gathered.is_of(shape, rows):
            self._make_room(gathered, num_rows * slots)
            fresh = decode.gather_rows(self._cache, inputs["rows_B"], slots)
            gathered.keep(fresh, shape, rows, [0] * len(rows))
        block, self._cache, after = decode.decode_block(
            self.config, parts, self._cache, gathered.cache, **inputs
        )
        gathered.keep(after, shape, rows, plan.num_tokens)
        return block

    def _make_room(self, gathered: GatheredRows, num_slots: int) -> None:
        """Frees what was gathered for a step. Frees other steps' as well while all together would
        be too many. A step without gathered rows gathers them again for its next block.
        """
        gathered.drop()
        most = self.limits.rows * self.config.max_length - num_slots
        self._gathered = [other for other in self._gathered if other.cache is not None]
        while sum(other.num_slots for other in self._gathered) > most:
            self._gathered.pop(0).drop()
        self._gathered.append(gathered)

    def _allocate_cache(self, prepared: Parts | MixedParts) -> jax.Device:
        """Returns the device that it is on: the device of the parameters."""
        if self._cache is None:
            # Committed to it: an uncommitted array is another kind of argument to `jit`, and would
            # compile every program twice.
            self._device = next(iter(jax.tree.leaves(prepared)[0].devices()))
            with jax.default_device(self._device):
                self._cache = jax.device_put(
                    decode.make_pool(self.config, self.limits.rows), self._device
                )
        return self._device
