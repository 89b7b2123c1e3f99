"""An outer step of one's own: Nesterov written out has the built-in's bits; any optimiser fits."""

import jax
import ml_dtypes
import numpy as np
import optax
import own_outer_step
import pytest

from dipaco import trees
from dipaco.outer.config import OuterSettings
from dipaco.outer.errors import StructureMismatch
from dipaco.outer.step import BLOCK_VALUES, first_outer_state, outer_step
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_state, save_state


def module(seed):
    """Larger than a block of the built-in step, and a leaf of another type."""
    random = np.random.default_rng(seed)
    large, small = random.normal(size=(3, BLOCK_VALUES // 2)), random.normal(size=5)
    return {
        "block_00": {"attention": {"w": large.astype(np.float32)}},
        "head": {"w": small.astype(np.float32)},
    }


def steps(settings, rule, kept=lambda state: state, count=3, dtype=np.float32):
    theta = jax.tree.map(lambda leaf: leaf.astype(dtype), module(0))
    state = first_outer_state(settings, theta, rule)
    for seed in range(1, count + 1):
        theta, state, _ = outer_step(settings, dict(theta), module(seed), kept(state), 3, rule)
    return theta


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rescale", [True, False])
def test_nesterov_written_out_is_the_built_in_step_bit_for_bit(dtype, rescale):
    settings = OuterSettings(rescale_by_fan_in=rescale)
    own = steps(settings, own_outer_step.nesterov, dtype=dtype)
    assert trees.digest(own) == trees.digest(steps(settings, None, dtype=dtype))
    other = OuterSettings(rescale_by_fan_in=rescale, momentum=0.8)
    assert trees.digest(own) != trees.digest(steps(other, own_outer_step.nesterov, dtype=dtype))


def test_the_state_of_any_optimiser_is_kept_between_steps(tmp_path):
    """Adam counts its steps, which is no state of a value."""
    objects, settings = Objects(tmp_path), OuterSettings()
    like = first_outer_state(settings, module(0), own_outer_step.adam)

    def through_a_file(state):
        return load_state(objects, save_state(objects, state), like)

    kept = steps(settings, own_outer_step.adam, through_a_file)
    assert trees.digest(kept) == trees.digest(steps(settings, own_outer_step.adam))
    forgotten = steps(settings, own_outer_step.adam, lambda _: like)
    assert trees.digest(kept) != trees.digest(forgotten)


def rotation(size):
    return np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))[0]


@pytest.mark.parametrize(
    ("matrix", "moves"),
    [
        ([[0, 3], [1, 0]], [[0, 2], [2, 0]]),
        (0.3 * rotation(4), 0.3 * rotation(4)),
        (np.outer([1, 2, 2], [3, 4]), np.outer([1, 2, 2], [3, 4])),
        (np.zeros((2, 3)), np.zeros((2, 3))),
    ],
)
def test_isotropic_merging_moves_a_block_as_far_in_all_its_directions(matrix, moves):
    """By hand; rotations and matrices of one direction stay, and so do vectors and the head."""
    settings = OuterSettings(learning_rate=1.0, momentum=0.0)
    vector, head = np.float32([1.0, 2.0]), np.float32([[0.0, 3.0], [1.0, 0.0]])
    mean = {"block_00": {"w": np.float32(matrix), "norm": vector}, "head": {"w": head}}
    before = jax.tree.map(np.zeros_like, mean)
    rule = own_outer_step.isotropic
    after = outer_step(
        settings, dict(before), mean, first_outer_state(settings, before, rule), 1, rule
    ).after
    np.testing.assert_allclose(after["block_00"]["w"], -np.asarray(moves), atol=1e-6)
    np.testing.assert_array_equal(after["block_00"]["norm"], -vector)
    np.testing.assert_array_equal(after["head"]["w"], -head)


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (lambda g, s, p: ({"head": g["head"]}, s), r"\(updates\).*block_00.*is missing"),
        (lambda g, s, p: (jax.tree.map(np.sum, g), s), r"\(updates\).*expected float32\["),
        (lambda g, s, p: (g, (s, s)), r"\(state\) returned other parts"),
    ],
)
def test_a_rule_that_returns_other_parts_is_refused(update, problem):
    settings = OuterSettings()
    rule = lambda _: optax.GradientTransformation(lambda p: np.zeros(2), update)  # noqa: E731
    with pytest.raises(StructureMismatch, match=problem):
        outer_step(
            settings, module(0), module(1), first_outer_state(settings, module(0), rule), 1, rule
        )
