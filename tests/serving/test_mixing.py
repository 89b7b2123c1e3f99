"""Rows of several paths in one step: which paths share one, and that no text changes."""

import collections
import contextlib
import dataclasses
import functools
import json
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.model.config import part_names, part_parameters
from dipaco.serving.decoding import mixing
from dipaco.serving.decoding.batch import Batch, BatchRow, GatheredRows
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.mixing import (
    LARGEST_STACK_BYTES,
    CommonStep,
    DecodeStep,
    LevelShape,
    Mixer,
    ModuleStacks,
    Spread,
    StepKind,
    StepShape,
    StepTimes,
    is_stacked,
    tile_shape,
)
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.topology import PER_PATH, Level, Topology, blocks
from tests.support.serving_rig import (
    CONFIG,
    compilations,
    ids,
    one_by_one,
    prepared,
    read,
    request,
    run_until_idle,
)

SIDE = 3  # modules of each of two levels
BELOW, ABOVE = part_names(CONFIG)[:2], part_names(CONFIG)[2:]
GRID = (LevelShape(BELOW, SIDE), LevelShape(ABOVE, SIDE))
WIDE = dataclasses.replace(CONFIG, max_length=1024)
LIMITS = LoopLimits(
    rows=12, rows_per_path=4, waiting=100, steps_per_block=4, smallest_slots=64, rows_per_step=(1,)
)


def path_of(number, of=prepared):
    """A path of the grid: its two modules are the very objects that other paths have."""
    below, above = of(number // SIDE), of(number % SIDE)
    return {part: below[part] for part in BELOW} | {part: above[part] for part in ABOVE}


def batch_of(parts, num_rows, grammar=None):
    batch = Batch(parts)
    batch.rows = [SimpleNamespace(grammar=grammar, tokens=[1]) for _ in range(num_rows)]
    return batch


def loop_over(path_of, grammars=None, limits=LIMITS):
    """A loop over the paths of the grid."""
    parts_of = lambda key: contextlib.nullcontext(path_of(key[1]))  # noqa: E731
    return Loop(CONFIG, parts_of, limits=limits, levels=GRID, grammars=grammars)


def warm_loop_over(path_of, grammars=None):
    """The same with every program compiled."""
    loop = loop_over(path_of, grammars)
    loop.warm_up(path_of(0))
    return loop


@pytest.mark.slow
def test_on_another_device_the_texts_are_the_same_and_nothing_is_compiled_after_the_warm_up(
    grammars,
):
    device = jax.local_devices()[-1]
    moved = functools.cache(lambda number: jax.device_put(prepared(number), device))
    loops = (
        warm_loop_over(path_of, grammars),
        warm_loop_over(functools.partial(path_of, of=moved), grammars),
    )
    names = {"type": "string", "pattern": "^[a-d]{2,9}$"}
    schema = json.dumps(
        {"type": "object", "properties": {"a": names, "b": names}, "required": ["a", "b"]}
    )
    warm = SamplingSettings(temperature=1.0, top_k=20, logit_bias=((3, 2.0),), presence_penalty=1.0)
    rng = np.random.default_rng(1)
    # First twelve rows that are too uneven for the tiles of evenly spread ones.
    paths = [0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 6, 6, *rng.integers(0, SIDE**2, 24).tolist()]
    requests = [
        request(
            rng.integers(0, CONFIG.vocab_size, rng.integers(1, 40)).tolist(),
            path=path,
            max_new_tokens=int(rng.integers(5, 20)),
            sampling=(SamplingSettings(), warm)[number % 2],
            seed=number,
            stop_ids=frozenset({7}) if number % 3 == 0 else frozenset(),
            min_new_tokens=4 * (number % 3 == 0),
            num_logprobs=3 if number % 5 == 0 else None,
            schema=schema if number >= 12 and number % 3 else None,
            prompt_logprobs=number == 10,
        )
        for number, path in enumerate(paths)
    ]
    before, texts, kinds = len(compilations), [], set()
    alone = one_by_one(loops[0], requests)
    for loop in loops:
        streams = [loop.submit(each) for each in requests[:12]]
        loop.run_once()
        assert loop._pool.mixer.shape(list(loop._batches.values())).spread is Spread.ANY
        streams += [loop.submit(each) for each in requests[12:]]  # while others are being served
        while loop.run_once():
            kinds |= {kind for kind, _ in loop._pool._of_several}
        assert not loop._pool._of_several, "nothing is kept of rows that are over"
        texts.append([read(stream) for stream in streams])
    assert all(finish.error is None for _, finish in texts[0])
    for each in texts:
        assert [[token.id for token in tokens] for tokens, _ in each] == alone
    assert kinds == {StepKind("", False), StepKind("", True)}
    assert len(compilations) == before


def test_a_row_that_moves_between_a_common_step_and_one_of_its_own_loses_no_token(monkeypatch):
    loop = loop_over(path_of, limits=dataclasses.replace(LIMITS, rows=6))
    requests = [request(range(i, i + 9), path=4 * i, max_new_tokens=40) for i in range(2)]
    alone = one_by_one(loop, requests)
    # In turn: together, apart, together. What was gathered for the one is stale for the other.
    turn = iter(range(1000))
    of = lambda rows, slots: 1 if isinstance(rows, int) else 9 * (next(turn) % 3 == 1)  # noqa: E731
    monkeypatch.setattr(loop.mixer, "times", SimpleNamespace(of=of))
    streams = [loop.submit(each) for each in requests]
    run_until_idle(loop)
    assert next(turn) > 6
    assert [ids(stream) for stream in streams] == alone


@given(st.integers(1, 130), st.integers(2, 300), st.data())
def test_the_tiles_for_rows_spread_in_any_way_hold_any_rows_of_a_level(num_rows, num_modules, data):
    level = LevelShape((), num_modules)
    num_tiles, columns = tile_shape(level, StepShape(num_rows, Spread.ANY))
    rows = data.draw(st.lists(st.integers(0, num_modules - 1), max_size=num_rows))
    used = sum(-(-count // columns) for count in collections.Counter(rows).values())
    assert used <= num_tiles
    even = StepShape(num_rows, Spread.EVEN)
    spread = collections.Counter(row % num_modules for row in range(num_rows)).values()
    assert sum(-(-count // columns) for count in spread) <= tile_shape(level, even)[0] <= num_tiles


@pytest.fixture
def as_columns(monkeypatch):
    """A machine that has tokens as columns."""
    monkeypatch.setattr("dipaco.serving.decoding.mixing.tokens_are_rows", lambda: False)


@pytest.mark.parametrize(
    ("num_modules", "even", "any_rows"),
    [
        (1, (1, 64), (1, 64)),
        (8, (8, 8), (15, 8)),
        (16, (16, 8), (28, 4)),  # of four columns there would be no room for uneven rows
        (32, (32, 4), (40, 4)),
        (60, (60, 4), (61, 4)),
        (256, (64, 2), (64, 2)),
    ],
)
def test_where_tokens_are_rows_tiles_have_four_columns_if_uneven_rows_fit(
    num_modules, even, any_rows, monkeypatch
):
    monkeypatch.setattr("dipaco.serving.decoding.mixing.tokens_are_rows", lambda: True)
    level = LevelShape((), num_modules)
    assert tile_shape(level, StepShape(64, Spread.EVEN)) == even
    assert tile_shape(level, StepShape(64, Spread.ANY)) == any_rows


@pytest.fixture
def stacked_grid(monkeypatch):
    """The grid on a machine that stacks the modules of a level, also for few rows."""
    monkeypatch.setattr("dipaco.serving.decoding.mixing.tokens_are_rows", lambda: True)
    monkeypatch.setattr("dipaco.serving.decoding.mixing.LEAST_STACKED_ROWS", 12)
    monkeypatch.setattr("dipaco.serving.decoding.mixing.LEAST_STACKED_COLUMNS", 4)
    return tuple(level._replace(module_bytes=1000) for level in GRID)


@pytest.mark.parametrize(
    ("num_rows", "num_modules", "even", "at_random"),
    [
        (64, 4, (4, 16), (4, 28)),
        (64, 8, (8, 8), (8, 16)),
        (128, 16, (16, 8), (16, 16)),
        (32, 4, (4, 8), (7, 8)),  # too few rows: not stacked
        (64, 16, (16, 8), (28, 4)),  # too few for each
        (64, 2, (2, 32), (3, 32)),  # too few modules
    ],
)
def test_stacked_modules_have_a_tile_each_with_room_for_rows_at_random(
    num_rows, num_modules, even, at_random, monkeypatch
):
    monkeypatch.setattr("dipaco.serving.decoding.mixing.tokens_are_rows", lambda: True)
    level = LevelShape((), num_modules, 1 << 20)
    assert tile_shape(level, StepShape(num_rows, Spread.EVEN, has_stacks=True)) == even
    at_random_shape = StepShape(num_rows, Spread.RANDOM, has_stacks=True)
    assert tile_shape(level, at_random_shape) == at_random
    assert is_stacked(level, at_random_shape) == (at_random[0] == num_modules)
    larger = level._replace(module_bytes=(LARGEST_STACK_BYTES + 1) // num_modules + 1)
    for not_stacked in (larger, LevelShape((), num_modules)):
        assert not is_stacked(not_stacked, at_random_shape)
        any_rows = StepShape(num_rows, Spread.ANY)
        assert tile_shape(not_stacked, at_random_shape) == tile_shape(level, any_rows)


def test_a_stacked_step_holds_no_module_with_more_rows_than_its_tile(stacked_grid):
    mixer = Mixer(CONFIG, stacked_grid, LIMITS)
    even, at_random = (StepShape(12, each, True) for each in (Spread.EVEN, Spread.RANDOM))
    apart, any_rows = (StepShape(12, each) for each in (Spread.EVEN, Spread.ANY))
    assert mixer.shapes == (even, at_random, apart, any_rows)
    assert [tile_shape(stacked_grid[0], each) for each in (even, at_random)] == [(3, 4), (3, 12)]
    of = lambda *rows: [batch_of(path_of(path), number) for path, number in rows]  # noqa: E731
    assert mixer.shape(of((0, 4), (4, 4), (8, 4))) == even
    assert mixer.shape(of((0, 5), (4, 1))) == at_random
    wide = Mixer(CONFIG, (stacked_grid[0]._replace(num_modules=8),), LoopLimits(rows=64))
    # Of a stack, 17 rows would not fit their tile; four modules have the eight tiles apart.
    assert wide.shape(of((0, 17), (3, 16))) == StepShape(64, Spread.EVEN)
    levels = tuple(level._replace(num_modules=2) for level in stacked_grid)
    more = of((0, 1), (4, 1), (8, 1))  # modules than the levels say
    assert not Mixer(CONFIG, levels, LIMITS).shape(more).has_stacks
    assert mixer.stack_bytes == 2 * SIDE * 1000
    assert Mixer(CONFIG, GRID, LIMITS).stack_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("on", [None, -1], ids=["default device", "other device"])
def test_rows_whose_modules_are_stacked_get_the_tokens_they_get_alone(
    on, stacked_grid, monkeypatch
):
    """Of three releases, while modules are read again, and after a step that failed."""
    monkeypatch.setattr(sys.modules[__name__], "GRID", stacked_grid)
    held, rng = {}, np.random.default_rng(0)

    def module_of(seed):
        if seed not in held:
            own = jax.tree.map(np.asarray, prepared(seed))
            device = on if on is None else jax.local_devices()[on]
            held[seed] = jax.tree.map(lambda leaf: jax.device_put(leaf, device), own)
        return held[seed]

    loop = warm_loop_over(lambda path: path_of(path, of=module_of))
    together = SimpleNamespace(of=lambda rows, slots: float(isinstance(rows, int)))
    monkeypatch.setattr(loop.mixer, "times", together)
    shapes, parts_of = set(), loop.mixer.parts
    watching = lambda step, stacks: (shapes.add(step.common.shape), parts_of(step, stacks))[1]  # noqa: E731
    monkeypatch.setattr(loop.mixer, "parts", watching)
    requests = [
        request(
            rng.integers(0, CONFIG.vocab_size, rng.integers(1, 30)).tolist(),
            path=int(rng.integers(SIDE**2)) if number < 20 else 4 * (number % SIDE),
            release="aaaab"[number % 5] if number < 30 else "c",
            max_new_tokens=int(rng.integers(3, 15)),
            seed=number,
        )
        for number in range(40)
    ]
    before, streams = len(compilations), []
    alone = one_by_one(loop, requests)
    for number, each in enumerate(requests):
        streams.append(loop.submit(each))
        if number % 4 == 0:
            loop.run_once()
        if number % 11 == 5:
            held.pop(number % SIDE, None)
    run_until_idle(loop)
    assert [ids(stream) for stream in streams] == alone

    held.clear()
    puts, put = iter(range(1000)), mixing._put

    def failing(*of_a_stack):
        consumed = put(*of_a_stack)
        if next(puts) == 2:
            raise RuntimeError
        return consumed

    failed, go_on_alone = [], loop._go_on_alone
    monkeypatch.setattr(loop, "_go_on_alone", lambda: (failed.append(1), go_on_alone()))
    monkeypatch.setattr(mixing, "_put", failing)
    streams = [loop.submit(each) for each in requests]
    run_until_idle(loop)
    assert [ids(stream) for stream in streams] == alone
    assert failed == [1], "the stacks that it consumed are begun again"
    assert len(compilations) == before
    assert {shape.spread for shape in shapes if shape.has_stacks} == {Spread.EVEN, Spread.RANDOM}
    assert any(not shape.has_stacks for shape in shapes)


def test_rows_that_are_too_uneven_for_a_step_of_their_number_take_the_next(as_columns):
    mixer = Mixer(CONFIG, (LevelShape(part_names(CONFIG), 8),), LoopLimits(rows=64))
    assert mixer.shapes == (
        *(StepShape(size, Spread.EVEN) for size in (8, 32, 64)),
        StepShape(64, Spread.ANY),
    )
    paths = [dict(prepared(0)) for _ in range(8)]
    for path in paths:
        path[part_names(CONFIG)[0]] = dict(path[part_names(CONFIG)[0]])

    def shape(*rows):
        found = mixer.shape([batch_of(paths[path], number) for path, number in enumerate(rows)])
        return found.num_rows, found.spread

    assert shape(2, 2, 2, 2) == (8, Spread.EVEN)
    assert shape(3, 3, 3, 3) == (32, Spread.EVEN)
    assert shape(9, 9, 9) == (32, Spread.EVEN)  # six tiles of eight
    assert shape(9, 9, 1, 1, 1, 1, 1) == (64, Spread.ANY)  # nine tiles: others have eight
    assert shape(8, 8, 8, 8, 8, 8, 8, 8) == (64, Spread.EVEN)
    assert shape(57, 1, 1, 1, 1, 1, 1, 1) == (64, Spread.ANY)


def test_a_loop_of_one_row_has_no_common_step():
    mixer = Mixer(CONFIG, GRID, LoopLimits(rows=1))
    assert mixer.shapes == ()
    only = {("a", 0): batch_of(path_of(0), 1)}
    assert mixer.divide(only) == [DecodeStep(list(only.values()))]


@pytest.mark.parametrize("spread", [Spread.EVEN, Spread.ANY])
def test_every_row_passes_the_modules_of_its_path(spread, as_columns):
    mixer = Mixer(CONFIG, GRID, LIMITS)
    first = 9 if spread is Spread.ANY else 3  # a tile has eight columns
    rows_of = ((0, first), (5, 1), (3, 1), (8, 1))
    batches = [batch_of(path_of(path), rows) for path, rows in rows_of]
    shape = StepShape(12, spread)
    assert mixer.shape(batches) == shape
    step = DecodeStep(batches, CommonStep(StepKind("", has_grammar=False), shape, 64))
    parts = mixer.parts(step, ModuleStacks())
    paths = [batch.prepared for batch in batches for _ in batch.rows]
    for level in parts.levels:
        columns = level.rows_TC.shape[1]
        for row, path in enumerate(paths):
            tile, column = divmod(int(level.places_B[row]), columns)
            assert level.rows_TC[tile, column] == row
            assert all(module is path[part] for part, module in level.modules[tile].items())
    any_parts = mixer.parts_of([path_of(8)], shape, "", ModuleStacks())
    assert jax.tree.map(np.shape, parts) == jax.tree.map(np.shape, any_parts)


def test_only_paths_of_one_release_with_rows_share_a_step_and_only_where_it_is_sooner():
    mixer = Mixer(CONFIG, GRID, LIMITS)
    batches = [batch_of(path_of(path), 1) for path in range(7)]
    empty, elsewhere = batch_of(path_of(7), 0), batch_of(path_of(8), 1)
    active = {("a", path): batch for path, batch in enumerate(batches)}
    steps = mixer.divide({**active, ("a", 7): empty, ("b", 8): elsewhere})
    plain = StepKind("a", has_grammar=False)
    common = DecodeStep(batches, CommonStep(plain, StepShape(12, Spread.EVEN), 64))
    assert steps == [common, DecodeStep([elsewhere])]
    with_grammar = [batch_of(path_of(path), 1, grammar=object()) for path in range(7)]
    steps = mixer.divide({("a", path): batch for path, batch in enumerate(with_grammar)})
    shared = StepKind("a", has_grammar=True)
    assert steps == [DecodeStep(with_grammar, CommonStep(shared, StepShape(12, Spread.EVEN), 64))]
    one = with_grammar[0]
    assert mixer.divide({**active, ("a", 9): one}) == [common, DecodeStep([one])]
    two = [DecodeStep([batch]) for batch in batches[:2]]
    assert mixer.divide({("a", path): batches[path] for path in range(2)}) == two
    # Paths that share nothing, with many rows each: a step for both would cut them into tiles.
    alone = (LevelShape(part_names(CONFIG), 64),)
    apart = Mixer(CONFIG, alone, LoopLimits(rows=64))
    few = {("a", path): batch_of(prepared(path), 32) for path in range(2)}
    assert [len(step.batches) for step in apart.divide(few)] == [1, 1]
    many = {("a", path): batch_of(dict(prepared(0)), 1) for path in range(40)}
    wide = Mixer(CONFIG, GRID, LoopLimits(rows=64))
    assert [len(step.batches) for step in wide.divide(many)] == [40]


@pytest.fixture
def four_paths():
    """A mixer of four paths that share nothing, and twelve rows of each, which are padded to 16."""
    mixer = Mixer(WIDE, (LevelShape(part_names(WIDE), 4),), LoopLimits(rows=64))
    return mixer, {("a", path): batch_of(dict(prepared(path)), 12) for path in range(4)}


def divided(mixer, batches):
    """Paths of each step, and its slots if it is a common one."""
    numbers = {id(batch): path for (_, path), batch in batches.items()}
    return [
        ([numbers[id(batch)] for batch in step.batches], step.common and step.common.slots)
        for step in mixer.divide(batches)
    ]


IN_TURN = [([path], None) for path in range(4)]


class Given:
    """Times as they are said to be."""

    def __init__(self, times):
        self.of = lambda *block: times[block]


@pytest.mark.parametrize(
    ("alone", "steps"), [(0.011, [([0, 1, 2, 3], 64)]), (0.009, IN_TURN)], ids=["together", "apart"]
)
def test_the_times_of_steps_decide_which_paths_share_one(four_paths, alone, steps):
    mixer, four = four_paths
    mixer.times = Given({(16, 64): alone, (StepShape(64, Spread.EVEN), 64): 0.04})
    assert divided(mixer, four) == steps


def test_a_long_text_does_not_make_the_steps_of_short_ones_long(four_paths):
    """A step attends to as many slots in every row as its longest row needs."""
    mixer, four = four_paths
    mixer.times = Given(
        {
            (16, 64): 1,
            (16, 1024): 9,
            **{(StepShape(size, Spread.EVEN), 64): 2 for size in (8, 32, 64)},
            **{(StepShape(size, Spread.EVEN), 1024): 34 for size in (8, 32, 64)},
        }
    )
    assert divided(mixer, four) == [([0, 1, 2, 3], 64)]
    four["a", 2].rows[0].tokens += [1] * 800
    assert divided(mixer, four) == [([0, 1, 3], 64), ([2], None)]
    for path in (0, 1, 3):
        four["a", path].rows[0].tokens += [1] * 800
    assert divided(mixer, four) == [([0, 1, 2, 3], 1024)], "34 against four times 9"


def test_an_estimate_counts_the_slots_that_rows_attend_to(four_paths):
    mixer, four = four_paths
    assert isinstance(mixer.times, StepTimes)
    assert mixer.times.of(8, 64) < mixer.times.of(8, 1024)
    four["a", 2].rows[0].tokens += [1] * 800
    assert all(slots in (None, 64) for _, slots in divided(mixer, four))


def test_a_release_of_more_modules_than_its_levels_say_is_served_path_by_path():
    few = (LevelShape(BELOW, 1), LevelShape(ABOVE, 2))
    mixer = Mixer(CONFIG, few, LIMITS)
    stopped_early = {("a", path): batch_of(path_of(path), 1) for path in (0, 3)}
    assert [len(step.batches) for step in mixer.divide(stopped_early)] == [1, 1]
    # Also where a common step would be much sooner: one module of two has all rows.
    whole = [batch_of(path_of(path), 1) for path in (0, 1, 2)]
    assert mixer.shape(whole[:2]) is not None
    few = (LevelShape(BELOW, 1), LevelShape(ABOVE, 9))
    mixer = Mixer(CONFIG, few, LoopLimits(rows=64))
    together = [batch_of(path_of(path), 1) for path in (0, 1, 2, 3)]
    assert mixer.shape(together[:3]) is not None
    assert mixer.shape(together) is None
    steps = mixer.divide({("a", path): batch for path, batch in enumerate(together)})
    assert [len(step.batches) for step in steps] == [1, 1, 1, 1]


def test_gathered_rows_are_of_these_rows_with_these_tokens_only():
    row, other = (BatchRow(None, 0, [1, 2, 3], 9, None) for _ in range(2))
    gathered = GatheredRows()
    gathered.keep("cache", (2, 64), [row], [1])
    assert not gathered.is_of((2, 64), [row])
    row.tokens = [1, 2, 3, 4]
    assert gathered.is_of((2, 64), [row])
    assert not gathered.is_of((2, 128), [row])
    other.tokens = row.tokens  # in the same row of the pool, too
    assert not gathered.is_of((2, 64), [other])
    assert gathered.num_slots == 128
    gathered.drop()
    assert gathered.num_slots == 0


def test_the_levels_of_a_run_are_those_that_own_parts():
    from dipaco.serving.engine import level_shapes

    topology = Topology(
        levels=(
            Level(name="early", parts=blocks(0, 0), experts=4),
            Level(name="replicas", experts=2),
            Level(name="own", parts=("embed",), experts=PER_PATH),
            Level(name="rest", parts=("final_norm",)),
        )
    )
    sizes = part_parameters(CONFIG)
    assert level_shapes(CONFIG, topology, range(topology.num_paths)) == (
        LevelShape(("block_00",), 4, 4 * sizes["block_00"]),
        LevelShape(("embed",), 8, 4 * sizes["embed"]),
        LevelShape(("final_norm",), 1, 4 * sizes["final_norm"]),
    )
