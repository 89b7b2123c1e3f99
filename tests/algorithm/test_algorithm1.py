"""Algorithm 1 at its limits: where it must equal something simpler, written out here.

The paths train by real inner steps, so that these laws hold for `inner`, `outer` and `topology`
together. The simpler thing is written with optax and NumPy alone.
"""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.algorithm import algorithm1
from dipaco.outer.config import OuterSettings
from dipaco.topology import Level, ModuleId, Topology
from tests.support.two_layers import (
    ADAMW,
    FLAT,
    GRID,
    PAPER,
    PHASES,
    PLAIN,
    PRIVATE,
    RATE,
    TAU,
    adamw_step,
    assert_close,
    batch_of,
    dense,
    initial_parts,
    start,
    train_path,
)


def train(topology, outer, *, documents=None, train_path=train_path, phases=PHASES, modules=None):
    """All modules at the start and after each phase."""
    modules = modules or start(topology)
    documents = documents or [1] * topology.num_paths
    return [modules, *algorithm1.train(topology, modules, train_path, documents, phases, outer)]


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
    became = {}

    def watched(path, phase, *rest):
        became[path], carried = train_path(path, phase, *rest)
        return became[path], carried

    (_, after) = train(PRIVATE, PLAIN, train_path=watched, phases=1)
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


def test_what_a_path_carries_comes_back_to_that_path_and_starts_as_none():
    seen = []

    def carries(path, phase, parts, carried):
        seen.append((path, phase, carried))
        return parts, f"path {path} after {phase}"

    train(GRID, PAPER, train_path=carries, phases=2)
    assert seen[:4] == [(path, 0, None) for path in range(4)]
    assert seen[4:] == [(path, 1, f"path {path} after 0") for path in range(4)]


def test_training_leaves_the_modules_it_was_given_as_they_were():
    modules = start(GRID)
    digests = {module: trees.digest(parts) for module, parts in modules.items()}
    first, *_ = phases = train(GRID, PAPER, modules=modules, phases=3)
    assert {module: trees.digest(parts) for module, parts in first.items()} == digests
    assert len({trees.digest(modules[ModuleId("early", 1)]) for modules in phases}) == 4
