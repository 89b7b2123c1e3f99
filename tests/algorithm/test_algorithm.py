"""Algorithm 1 at its limits: where it must equal something simpler, written out here.

The paths train a model of two layers by real inner steps (`inner`), so that these laws hold for the
rooms together. The simpler thing is written with optax and NumPy, and knows nothing of the house.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dipaco import trees
from dipaco.algorithm import variants as algorithm
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import adamw, adamw_of_clipped
from dipaco.inner.phase import run_phase
from dipaco.inner.state import PathState
from dipaco.inner.step import gradient_function, make_step
from dipaco.inner.synchronous import make_module_update
from dipaco.outer.config import OuterSettings
from dipaco.outer.gradient import WeightedMean, outer_gradient, path_weights
from dipaco.topology import PER_PATH, Level, ModuleId, Topology, dissect

TAU, PHASES, RATE = 3, 3, 0.05
INNER = InnerSettings(steps=TAU, batch_size=4, clip_norm=1e6, warmup_steps=0)
PLAIN = OuterSettings(
    learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False, weigh_by_documents=False
)
PAPER = OuterSettings(learning_rate=0.7, momentum=0.9, rescale_by_fan_in=False)


def loss_fn(parts, batch):
    """Summed squared error of a network with one hidden layer, and the number of targets."""
    hidden = jnp.tanh(batch["x"] @ parts["embed"]["w"])
    errors = hidden @ parts["head"]["w"] - batch["y"]
    return (errors**2).sum(), jnp.float32(errors.size)


def initial_parts():
    rng = np.random.default_rng(0)
    return {
        "embed": {"w": rng.normal(size=(3, 4)).astype(np.float32)},
        "head": {"w": rng.normal(size=(4, 1)).astype(np.float32)},
    }


def batch_of(path, step):
    """Each path has data of its own."""
    rng = np.random.default_rng([path, step])
    x = rng.normal(path, 1, size=(4, 3)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1, keepdims=True) + path).astype(np.float32)}


STEP = make_step(loss_fn, INNER)


def train_path(path, phase, parts, carried):
    """Lines 5-10 of Algorithm 1, by the room `inner`."""
    optimizer, step = (adamw(INNER).init(parts), jnp.int32(0)) if carried is None else carried
    state = jax.tree.map(jnp.array, PathState(parts, optimizer, step))
    batches = (batch_of(path, number) for number in itertools.count(phase * TAU))
    state = run_phase(state, batches, np.full(TAU, RATE, np.float32), STEP).state
    return state.parts, (state.optimizer, state.step)


def start(topology, parts=None):
    """Every module cut from the same model."""
    parts = parts or initial_parts()
    modules = {}
    for path in range(topology.num_paths):
        modules |= dissect(parts, topology, path)
    return modules


def train(
    topology, outer, *, documents=None, train_path=train_path, phases=PHASES, modules=None, **others
):
    """All modules after each phase, the first included."""
    modules = modules or start(topology)
    documents = documents or [1] * topology.num_paths
    trained = algorithm.train(
        topology, modules, train_path, documents, phases=phases, outer=outer, **others
    )
    return [modules, *trained]


def dense(paths=1):
    """All shared, and an empty level that makes `paths` paths: DiLoCo; one path: a dense model."""
    return Topology(
        levels=(Level(name="all", parts=("embed", "head")), Level(name="replica", experts=paths))
    )


GRID = Topology(
    levels=(
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("head",), experts=2),
    )
)
FLAT = Topology(levels=(Level(name="all", parts=("embed", "head"), experts=3),))


def assert_close(got, expected, rtol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol=1e-6), got, expected)


# --- plain things, by optax ---------------------------------------------------------------------

ADAMW = optax.adamw(RATE, b1=0.9, b2=0.95, weight_decay=0.1)


@jax.jit
def adamw_step(parts, state, batch):
    gradient = jax.grad(lambda parts: loss_fn(parts, batch)[0] / 4)(parts)
    updates, state = ADAMW.update(gradient, state, parts)
    return optax.apply_updates(parts, updates), state


def plain_diloco(parts, paths, lr, mu, phases):
    """arXiv 2311.08105, Algorithm 1; AdamW inside, Nesterov outside, plain mean over replicas."""
    states = [ADAMW.init(parts) for _ in range(paths)]
    u = jax.tree.map(np.zeros_like, parts)
    for phase in range(phases):
        moved = []
        for path in range(paths):
            replica = parts
            for step in range(phase * TAU, (phase + 1) * TAU):
                replica, states[path] = adamw_step(replica, states[path], batch_of(path, step))
            moved.append(jax.tree.map(lambda old, new: old - np.asarray(new), parts, replica))
        g = jax.tree.map(lambda *deltas: sum(deltas) / paths, *moved)
        u = jax.tree.map(lambda u, g: mu * u + g, u, g)
        parts = jax.tree.map(lambda old, g, u: old - lr * (g + mu * u), parts, g, u)
    return parts


# --- laws ---------------------------------------------------------------------------------------


def test_law_1_with_one_path_and_a_unit_rate_a_phase_makes_the_module_what_the_path_became():
    topology = Topology(levels=(Level(name="all", parts=("embed", "head")),))
    became = []

    def watched(*arguments):
        result = train_path(*arguments)
        became.append(result[0])
        return result

    after = train(topology, PLAIN, train_path=watched)[1:]
    assert len(became) == PHASES
    for modules, path in zip(after, became, strict=True):
        assert_close(modules[ModuleId("all", 0)], path, rtol=1e-6)


def test_law_1_holds_for_private_modules_of_a_grid_too():
    topology = Topology(
        levels=(
            Level(name="early", parts=("embed",), experts=2),
            Level(name="own", parts=("head",), experts=PER_PATH),
        )
    )
    became = {}

    def watched(path, phase, *rest):
        became[path], carried = train_path(path, phase, *rest)
        return became[path], carried

    (_, after) = train(topology, PLAIN, train_path=watched, phases=1)
    for path in range(2):
        assert_close(after[ModuleId("own", path)]["head"], became[path]["head"], rtol=1e-6)


@pytest.mark.parametrize("paths", [1, 4])
def test_law_2_all_shared_with_an_empty_level_of_paths_is_plain_diloco(paths):
    after = train(dense(paths), PAPER)[-1]
    expected = plain_diloco(initial_parts(), paths, lr=0.7, mu=0.9, phases=PHASES)
    assert_close(after[ModuleId("all", 0)], expected)


def test_law_3_a_flat_mixture_is_as_many_independent_runs_with_the_outer_optimiser():
    """Footnote 1 of the paper; documents do not matter where a module has one path."""
    together = train(FLAT, PAPER, documents=[5, 1, 9])
    for path in range(3):

        def alone(_, *rest, path=path):
            return train_path(path, *rest)

        for one, all_of_them in zip(train(dense(), PAPER, train_path=alone), together, strict=True):
            expected = one[ModuleId("all", 0)]
            assert trees.digest(all_of_them[ModuleId("all", path)]) == trees.digest(expected)


def gradient_of_union(parts, batches):
    """Of the mean over all rows of all batches together, by hand."""
    x, y = (np.concatenate([batch[key] for batch in batches]) for key in ("x", "y"))
    hidden = np.tanh(x @ parts["embed"]["w"])
    errors = 2 / len(x) * (hidden @ parts["head"]["w"] - y)
    back = errors @ parts["head"]["w"].T * (1 - hidden**2)
    return {"embed": {"w": x.T @ back}, "head": {"w": hidden.T @ errors}}


@pytest.mark.parametrize("rows", [(4, 4, 4), (1, 2, 4)], ids=["equal shards", "unequal shards"])
def test_law_4_one_sgd_step_a_phase_is_synchronous_data_parallelism(rows):
    """Weights by documents make it the mean over documents where shards differ in size."""

    def batch(path, phase):
        return {key: value[: rows[path]] for key, value in batch_of(path, phase).items()}

    def sgd(path, phase, parts, _):
        gradient = gradient_of_union(parts, [batch(path, phase)])
        return jax.tree.map(lambda w, g: w - np.float32(RATE) * g, parts, gradient), None

    outer = dataclasses.replace(PLAIN, weigh_by_documents=True)
    after = train(dense(3), outer, train_path=sgd, documents=list(rows))

    parts = initial_parts()
    for phase, modules in enumerate(after[1:]):
        gradient = gradient_of_union(parts, [batch(path, phase) for path in range(3)])
        parts = jax.tree.map(lambda w, g: w - np.float32(RATE) * g, parts, gradient)
        assert_close(modules[ModuleId("all", 0)], parts)


def test_law_4_holds_per_module_of_a_grid_over_the_paths_through_it():
    def sgd(path, phase, parts, _):
        gradient = gradient_of_union(parts, [batch_of(path, phase)])
        return jax.tree.map(lambda w, g: w - np.float32(RATE) * g, parts, gradient), None

    _, after = train(GRID, PLAIN, train_path=sgd, phases=1)
    parts = initial_parts()
    for module in GRID.modules:
        batches = [batch_of(path, 0) for path in GRID.paths_through(module)]
        (part,) = GRID.parts_of(module)
        expected = parts[part]["w"] - RATE * gradient_of_union(parts, batches)[part]["w"]
        np.testing.assert_allclose(after[module][part]["w"], expected, rtol=1e-5, atol=1e-6)


@given(
    order=st.permutations(range(4)), documents=st.lists(st.integers(1, 99), min_size=4, max_size=4)
)
@hypothesis_settings(max_examples=20, deadline=None)
def test_law_5_the_order_of_arrival_does_not_matter_and_weights_scale_out(order, documents):
    before = initial_parts()
    moved = {path: jax.tree.map(lambda w, p=path: w * (1 + 0.1 * p), before) for path in range(4)}

    def mean(paths, documents):
        mean, weights = WeightedMean(), path_weights([documents[path] for path in paths])
        for path, weight in zip(paths, weights, strict=True):
            mean.add(outer_gradient(before, moved[path]), weight)
        return mean.take()

    in_path_order = mean(range(4), documents)
    assert_close(mean(order, documents), in_path_order)
    assert_close(mean(range(4), [10 * n for n in documents]), in_path_order)


# --- each switch, by hand -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rescale", "by_documents", "expected"),
    [
        # Two paths move the shared embedding by -1 and -5 and have 1 and 3 documents.
        (False, False, 3.0),
        (False, True, 4.0),
        (True, False, 3.0 * 2**0.5),
        (True, True, 4.0 * 2**0.5),
    ],
)
def test_rescale_and_document_weights_are_a_switch_each(rescale, by_documents, expected):
    outer = OuterSettings(
        learning_rate=0.5, momentum=0.0, rescale_by_fan_in=rescale, weigh_by_documents=by_documents
    )

    def moves(path, phase, parts, _):
        return {"embed": {"w": parts["embed"]["w"] - (1.0, 5.0)[path]}, "head": parts["head"]}, None

    before, after = train(dense(2), outer, documents=[1, 3], train_path=moves, phases=1)
    module = ModuleId("all", 0)
    moved = before[module]["embed"]["w"] - after[module]["embed"]["w"]
    np.testing.assert_allclose(moved, np.full((3, 4), 0.5 * expected), rtol=1e-5)
    np.testing.assert_array_equal(after[module]["head"]["w"], before[module]["head"]["w"])


def test_each_module_has_its_own_fan_in():
    """Three paths through the shared head, one through each embedding: roots 3 and 1."""
    topology = Topology(
        levels=(
            Level(name="early", parts=("embed",), experts=3),
            Level(name="late", parts=("head",)),
        )
    )

    def moves(path, phase, parts, _):
        return jax.tree.map(lambda w: w - 1, parts), None

    outer = dataclasses.replace(PLAIN, rescale_by_fan_in=True)
    before, after = train(topology, outer, train_path=moves, phases=1)
    shared, private = ModuleId("late", 0), ModuleId("early", 2)
    moved = [
        before[m][part]["w"] - after[m][part]["w"]
        for m, part in ((shared, "head"), (private, "embed"))
    ]
    np.testing.assert_allclose(moved[0], np.full((4, 1), 3**0.5), rtol=1e-6)
    np.testing.assert_allclose(moved[1], np.ones((3, 4)), rtol=1e-6)


# --- what belongs to a path stays with it -------------------------------------------------------


def test_what_a_path_carries_comes_back_to_that_path_and_starts_as_nothing():
    seen = []

    def carries(path, phase, parts, carried):
        seen.append((path, phase, carried))
        return parts, f"path {path} after {phase}"

    train(GRID, PAPER, train_path=carries, phases=2)
    assert seen[:4] == [(path, 0, None) for path in range(4)]
    assert seen[4:] == [(path, 1, f"path {path} after 0") for path in range(4)]


def test_an_adamw_state_that_is_reset_each_phase_ends_elsewhere():
    """The guard of the law before: carrying matters."""

    def forgetful(path, phase, parts, _):
        fresh = (adamw(INNER).init(parts), jnp.int32(0))
        return train_path(path, phase, parts, fresh)

    kept, reset = (train(dense(2), PAPER, train_path=by)[-1] for by in (train_path, forgetful))
    module = ModuleId("all", 0)
    assert abs(kept[module]["head"]["w"] - reset[module]["head"]["w"]).max() > 1e-3


def test_without_an_outer_step_one_path_is_plain_adamw_over_all_phases():
    """How the base model and the dense baselines are trained."""
    after = train(dense(), None)[-1][ModuleId("all", 0)]
    parts = initial_parts()
    state = ADAMW.init(parts)
    for step in range(TAU * PHASES):
        parts, state = adamw_step(parts, state, batch_of(0, step))
    assert_close(after, parts)


def test_training_leaves_the_modules_it_was_given_as_they_were():
    modules = start(GRID)
    digests = {module: trees.digest(parts) for module, parts in modules.items()}
    first, *_ = phases = train(GRID, PAPER, modules=modules, phases=3)
    assert {module: trees.digest(parts) for module, parts in first.items()} == digests
    assert len({trees.digest(modules[ModuleId("early", 1)]) for modules in phases}) == 4


def test_the_same_run_twice_is_equal_bit_for_bit():
    one, other = (train(GRID, PAPER, documents=[3, 1, 4, 1])[-1] for _ in range(2))
    assert {m: trees.digest(parts) for m, parts in one.items()} == {
        m: trees.digest(parts) for m, parts in other.items()
    }


# --- path sampling, alternations, early stopping ------------------------------------------------


def digests(modules):
    return {module: trees.digest(parts) for module, parts in modules.items()}


def test_sampling_all_paths_equals_no_sampling_and_a_half_does_not():
    without = train(GRID, PAPER)[-1]
    assert digests(train(GRID, PAPER, take_part=lambda _: range(4))[-1]) == digests(without)
    halves = train(GRID, PAPER, take_part=lambda phase: ((0, 3), (1, 2), (0, 1))[phase])[-1]
    assert digests(halves) != digests(without)


@pytest.mark.parametrize(("taking_part", "moved"), [((0,), 1.0), ((1,), 5.0), ((0, 1), 4 * 2**0.5)])
def test_weights_and_fan_in_are_of_the_paths_that_took_part(taking_part, moved):
    """They move the shared module by -1 and -5 and have 1 and 3 documents; roots 1 and 2."""

    def moves(path, phase, parts, _):
        return jax.tree.map(lambda w: w - (1.0, 5.0)[path], parts), None

    outer = OuterSettings(learning_rate=1.0, momentum=0.0)
    others = {"documents": [1, 3], "phases": 1, "take_part": lambda _: taking_part}
    before, after = train(dense(2), outer, train_path=moves, **others)
    module = ModuleId("all", 0)
    got = before[module]["embed"]["w"] - after[module]["embed"]["w"]
    np.testing.assert_allclose(got, np.full((3, 4), moved), rtol=1e-5)


def test_a_module_without_a_path_in_a_phase_waits_with_its_momentum():
    """In a flat mixture, a path that sits out a phase ends where it would have, a phase later."""

    def by_own_count(path, phase, parts, carried):
        count, state = carried or (0, None)
        after, state = train_path(path, count, parts, state)
        return after, (count + 1, state)

    def take_part(phase):
        return (0, 2) if phase == 1 else (0, 1, 2)

    sampled = train(FLAT, PAPER, train_path=by_own_count, take_part=take_part, phases=3)
    without = train(FLAT, PAPER, train_path=by_own_count, phases=3)
    one, other = ModuleId("all", 1), ModuleId("all", 2)
    assert trees.digest(sampled[2][one]) == trees.digest(sampled[1][one])
    assert trees.digest(sampled[3][one]) == trees.digest(without[2][one])
    assert trees.digest(sampled[3][other]) == trees.digest(without[3][other])


def test_an_alternation_to_the_same_shards_changes_nothing_and_to_others_the_weights():
    asked = []

    def to(documents):
        def alternate(phase, modules):
            asked.append((phase, len(modules)))
            return documents if phase == 2 else None

        return alternate

    without = train(GRID, PAPER, documents=[3, 1, 4, 1])
    same = train(GRID, PAPER, documents=[3, 1, 4, 1], alternate=to([3, 1, 4, 1]))
    assert [digests(m) for m in same] == [digests(m) for m in without]
    assert asked == [(1, 4), (2, 4)]
    others = train(GRID, PAPER, documents=[3, 1, 4, 1], alternate=to([1, 5, 9, 2]))
    assert [digests(m) == digests(n) for m, n in zip(others, without, strict=True)] == [
        *(True, True, True, False)
    ]


# --- quorum: contributions that are late ---------------------------------------------------------


def in_time(topology):
    """Every step takes the contributions of its own phase, all of them."""
    return lambda module, phase: [(phase, path) for path in topology.paths_through(module)]


def late(topology, taken):
    """The steps of the shared module take what `taken` says, step by step."""
    own = in_time(topology)
    return lambda module, step: taken[step] if module.level == "all" else own(module, step)


@pytest.mark.parametrize("topology", [GRID, FLAT, dense(3)])
def test_with_a_quorum_and_nobody_late_the_bits_are_those_without(topology):
    documents = [3, 1, 4, 1][: topology.num_paths]
    without = train(topology, PAPER, documents=documents)
    with_quorum = train(topology, PAPER, documents=documents, takes=in_time(topology))
    assert [digests(m) for m in with_quorum] == [digests(m) for m in without]


def test_a_late_contribution_moves_its_module_as_far_a_step_later():
    """Two paths move the shared module by -1 and -5 and have 1 and 3 documents: with the root of
    two, 0.25 * 1 and 0.75 * 5 times 1.41, whenever they come.
    """

    def moves(path, phase, parts, _):
        return jax.tree.map(lambda w: w - (1.0, 5.0)[path], parts), None

    outer = OuterSettings(learning_rate=1.0, momentum=0.0)
    taken = [[(0, 0)], [(0, 1), (1, 0), (1, 1)]]
    phases = train(
        dense(2), outer, train_path=moves, documents=[1, 3], phases=2,
        takes=late(dense(2), taken),
    )  # fmt: skip
    module, root = ModuleId("all", 0), 2**0.5
    at = [modules[module]["embed"]["w"] for modules in phases]
    np.testing.assert_allclose(at[0] - at[1], np.full((3, 4), 0.25 * root), rtol=1e-4)
    np.testing.assert_allclose(at[1] - at[2], np.full((3, 4), (4.0 + 3.75) * root), rtol=1e-4)


def test_a_late_contribution_keeps_the_fan_in_of_its_own_phase():
    """Sampled: both paths go through phase 0 and path 0 alone through phase 1. Then nobody."""

    def moves(path, phase, parts, _):
        return jax.tree.map(lambda w: w - (1.0, 5.0)[path], parts), None

    outer = OuterSettings(learning_rate=1.0, momentum=0.0)

    def moved(taking_part, taken):
        phases = train(
            dense(2), outer, train_path=moves, documents=[1, 3], phases=2,
            takes=late(dense(2), taken), take_part=lambda phase: taking_part[phase],
        )  # fmt: skip
        return [modules[ModuleId("all", 0)]["embed"]["w"][0, 0] for modules in phases]

    start, one, two = moved([(0, 1), (0,)], [[(0, 0)], [(0, 1), (1, 0)]])
    np.testing.assert_allclose(one - two, 0.75 * 5 * 2**0.5 + 1.0, rtol=1e-4)
    start, one, two = moved([(0, 1), ()], [[(0, 0)], [(0, 1)]])
    np.testing.assert_allclose([start - one, one - two], [0.25 * 2**0.5, 3.75 * 2**0.5], rtol=1e-4)


@pytest.mark.parametrize("codec_name", ["none", "int8"])
def test_a_path_that_is_late_trains_on_its_modules_without_what_it_sent(codec_name):
    """One shared module, two paths, the second late for the first step: as written out by hand."""
    from dipaco.outer.compress import codec, send
    from dipaco.outer.gradient import WeightedMean, outer_gradient
    from dipaco.outer.step import fresh, outer_step

    topology, module = dense(2), ModuleId("all", 0)
    taken = [[(0, 0)], [(0, 1), (1, 0), (1, 1)]]
    by_tasks = train(
        topology, PAPER, phases=2, codec=codec(codec_name), takes=late(topology, taken)
    )
    at, momentum = by_tasks[0][module], fresh(PAPER, by_tasks[0][module])
    carried, residual, sent = [None, None], [None, None], {}
    for step in range(2):
        for path in range(2):
            after, carried[path] = train_path(path, step, dict(at), carried[path])
            gradient = outer_gradient(at, jax.device_get(after))
            message, residual[path] = send(codec(codec_name), gradient, residual[path])
            sent[step, path] = codec(codec_name).decode(message)
        mean = WeightedMean()
        for key in taken[step]:
            mean.add(sent[key], 0.5)
        at, momentum, _ = outer_step(PAPER, dict(at), mean.take(), momentum, 2)
        assert trees.digest(at) == trees.digest(by_tasks[step + 1][module])


def test_early_stopping_releases_the_best_of_every_path_and_of_equals_the_first():
    history = [{m: {"w": np.float32(phase)} for m in FLAT.modules} for phase in range(4)]
    losses = [[5, 3, 4, 4], [2, 2, 2, 2], [9, 8, 7, 6]]

    def loss(path, parts):
        return losses[path][int(parts["w"])]

    def phases(**others):
        return [int(p["w"]) for p in algorithm.release(FLAT, history, loss, **others)]

    assert phases() == [1, 0, 3]
    assert phases(routed_at=2) == [2, 2, 3]


# --- synchronously, section 4.5 -------------------------------------------------------------------

STEPS = 6


def train_synchronously(topology, *, clip_norm=1e6, documents=None, batch=batch_of):
    """All modules after six steps of all paths together."""
    settings = dataclasses.replace(INNER, clip_norm=clip_norm)
    compiled = make_module_update(settings)
    mean_gradient = jax.jit(gradient_function(loss_fn, settings))
    modules = jax.tree.map(jnp.array, start(topology))
    optimizer = adamw_of_clipped(settings)
    *_, (modules, _) = algorithm.train_synchronously(
        topology,
        modules,
        {module: optimizer.init(parts) for module, parts in modules.items()},
        lambda path, step, parts: mean_gradient(parts, batch(path, step))[0],
        lambda step, *arguments: compiled(*arguments, np.float32(RATE)),
        documents or [1] * topology.num_paths,
        steps=range(STEPS),
        clip_norm=clip_norm,
    )
    return modules


def plain_adamw(batches, clip_norm=1e6):
    """Parameters after a step on each batch, by optax."""
    optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), ADAMW)
    parts = jax.tree.map(jnp.array, initial_parts())
    state = optimizer.init(parts)
    for batch in batches:
        gradient = jax.grad(lambda parts, b=batch: loss_fn(parts, b)[0] / b["y"].size)(parts)
        updates, state = optimizer.update(gradient, state, parts)
        parts = optax.apply_updates(parts, updates)
    return parts


def union_of(batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
def test_synchronous_with_one_path_is_plain_adamw(clip_norm):
    modules = train_synchronously(dense(1), clip_norm=clip_norm)
    expected = plain_adamw([batch_of(0, step) for step in range(STEPS)], clip_norm)
    assert_close(modules[ModuleId("all", 0)], expected)
    if clip_norm < 1:  # the clipping is felt
        free = plain_adamw([batch_of(0, step) for step in range(STEPS)])
        assert not np.allclose(free["embed"]["w"], expected["embed"]["w"], rtol=1e-3)


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
def test_synchronous_with_all_shared_is_one_model_with_the_batches_together(clip_norm):
    modules = train_synchronously(dense(3), clip_norm=clip_norm)
    unions = [union_of([batch_of(path, step) for path in range(3)]) for step in range(STEPS)]
    assert_close(modules[ModuleId("all", 0)], plain_adamw(unions, clip_norm), rtol=1e-4)


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
def test_synchronous_with_nothing_shared_is_as_many_models(clip_norm):
    modules = train_synchronously(FLAT, clip_norm=clip_norm)
    for path in range(3):
        expected = plain_adamw([batch_of(path, step) for step in range(STEPS)], clip_norm)
        assert_close(modules[ModuleId("all", path)], expected)


def test_synchronous_shards_weigh_by_their_documents():
    """Twice the documents are as good as the same path twice."""

    def of_three(path, step):
        return batch_of(min(path, 1), step)

    weighed = train_synchronously(dense(2), documents=[1, 2])
    twice = train_synchronously(dense(3), batch=of_three)
    assert_close(weighed, twice, rtol=1e-4)


def test_synchronous_modules_of_a_grid_move_with_the_mean_of_their_own_paths():
    """Where all paths have the same data, a grid is one model four times."""
    modules = train_synchronously(GRID, batch=lambda path, step: batch_of(0, step))
    expected = plain_adamw([batch_of(0, step) for step in range(STEPS)])
    for module in GRID.modules:
        assert_close(modules[module], {part: expected[part] for part in GRID.parts_of(module)})
    differing = train_synchronously(GRID)
    assert not np.allclose(
        differing[ModuleId("early", 0)]["embed"]["w"], differing[ModuleId("early", 1)]["embed"]["w"]
    )
