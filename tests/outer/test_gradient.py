"""Outer gradients and their mean: signs, weights, order, precision, what is refused."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco import trees
from dipaco.outer.config import OuterSettings
from dipaco.outer.errors import NotFinite, StructureMismatch
from dipaco.outer.gradient import (
    PIECE_VALUES,
    WeightedMean,
    mean_cosine,
    outer_gradient,
    path_weights,
)
from dipaco.outer.step import first_outer_state, outer_step


def tree(*values, dtype=np.float32):
    return {"block": {"w": np.array(values, dtype)}}


def mean_of(gradients, weights):
    mean = WeightedMean()
    for gradient, weight in zip(gradients, weights, strict=True):
        mean.add(gradient, weight)
    return mean.take()


def test_the_outer_gradient_points_from_new_to_old():
    gradient = outer_gradient(tree(3, 5), tree(1, 6))
    np.testing.assert_array_equal(gradient["block"]["w"], np.float32([2, -1]))


def test_differences_of_bfloat16_parameters_are_taken_and_summed_in_float32():
    before, after = tree(1.0, dtype=ml_dtypes.bfloat16), tree(0.9921875, dtype=ml_dtypes.bfloat16)
    gradient = outer_gradient(before, after)
    assert gradient["block"]["w"].dtype == np.float32
    # A sum in bfloat16 sticks near 1/256 of its way: 8 bits of mantissa.
    mean = mean_of([gradient] * 1024, [1 / 1024] * 1024)
    np.testing.assert_allclose(mean["block"]["w"], [0.0078125], rtol=1e-5)


def test_a_path_that_comes_back_with_other_parts_is_refused():
    with pytest.raises(
        StructureMismatch, match=r"`block\.w` is float32\[1\], expected float32\[2\]"
    ):
        outer_gradient(tree(3, 5), tree(1))


def test_weights_are_shares_of_the_documents_or_all_equal():
    np.testing.assert_allclose(path_weights([1, 2, 5]), [1 / 8, 2 / 8, 5 / 8])
    np.testing.assert_allclose(path_weights([1, 2, 5], by_documents=False), [1 / 3] * 3)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.integers(2, 1000))
def test_weights_sum_to_one_and_their_scale_does_not_matter(documents, factor):
    weights = path_weights(documents)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(path_weights([factor * n for n in documents]), weights, rtol=1e-12)


def test_the_mean_by_hand():
    mean = mean_of([tree(1, 10), tree(3, 20)], [0.25, 0.75])
    np.testing.assert_array_equal(mean["block"]["w"], np.float32([2.5, 17.5]))


contributions = st.lists(
    st.tuples(
        st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), st.integers(1, 1000)
    ),
    min_size=1,
    max_size=12,
)


@given(contributions.flatmap(lambda given: st.tuples(st.just(given), st.permutations(given))))
def test_the_order_of_contributions_does_not_change_the_mean_beyond_rounding(orders):
    means = []
    for order in orders:
        weights = path_weights([documents for _, documents in order])
        means.append(mean_of([tree(*values) for values, _ in order], weights)["block"]["w"])
    largest = max(abs(value) for values, _ in orders[0] for value in values)
    np.testing.assert_allclose(
        means[0], means[1], rtol=1e-6, atol=1e-30 + len(orders[0]) * 1e-7 * largest
    )


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), st.integers(1, 300))
def test_the_mean_of_equal_gradients_is_that_gradient(values, paths):
    mean = mean_of([tree(*values)] * paths, path_weights([7] * paths))
    np.testing.assert_allclose(
        mean["block"]["w"], np.float32(values), rtol=paths * 1e-7, atol=1e-30
    )


def test_the_mean_keeps_no_reference_to_a_contribution():
    gradient, mean = tree(1.0), WeightedMean()
    mean.add(gradient, 1.0)
    gradient["block"]["w"][:] = 99
    np.testing.assert_array_equal(mean.take()["block"]["w"], np.float32([1.0]))


def test_taking_the_mean_starts_a_new_one():
    mean = WeightedMean()
    mean.add(tree(1.0), 1.0)
    mean.take()
    mean.add(tree(5.0), 1.0)
    np.testing.assert_array_equal(mean.take()["block"]["w"], np.float32([5.0]))


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_module_of_many_blocks_adds_up_as_its_definition_bit_for_bit(threads):
    rng = np.random.default_rng(0)
    contributions = [rng.standard_normal((3, PIECE_VALUES - 1), np.float32) for _ in range(3)]
    weights = path_weights([1, 5, 3]).astype(np.float32)
    expected = weights[0] * contributions[0]
    for weight, leaf in zip(weights[1:], contributions[1:], strict=True):
        expected = expected + weight * leaf
    # Leaves that do not lie in memory as they are read must come out the same.
    with ThreadPoolExecutor(threads) as pool:
        for order in "CF":
            mean = WeightedMean(pool if threads else None)
            for leaf, weight in zip(contributions, weights, strict=True):
                mean.add({"w": np.asarray(leaf, order=order)}, weight)
            value = mean.take()["w"]
            np.testing.assert_array_equal(value.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_contribution_that_is_not_finite_is_refused(bad):
    with pytest.raises(NotFinite, match=r"An outer gradient .* `block\.w`"):
        outer_gradient(tree(1, 2), tree(1, bad))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_mean_that_is_not_finite_is_refused_whichever_contribution_it_was(bad, place):
    contributions = [{"a": np.float32([1, 2]), "z": np.float32([3])} for _ in range(3)]
    contributions[place]["z"][:] = bad
    mean = WeightedMean()
    for contribution in contributions:
        mean.add(contribution, 0.25)
    with pytest.raises(NotFinite, match=r"mean of the outer gradients .* `z`"):
        mean.take()


def test_a_gradient_of_other_parts_is_refused_and_leaves_the_sum_as_it_was():
    mean = WeightedMean()
    mean.add(tree(1.0), 1.0)
    for other in (tree(1.0, 2.0), {"head": {"w": np.float32([1])}}, {}):
        with pytest.raises(StructureMismatch, match="An outer gradient"):
            mean.add(other, 1.0)
    assert trees.digest(mean.take()) == trees.digest(tree(1.0))


@pytest.mark.parametrize("paths", [2, 3, 5])
def test_the_mean_cosine_is_that_of_all_pairs(paths):
    """Written out over pairs, from gradients that were added one by one."""
    rng = np.random.default_rng(paths)
    gradients = rng.normal(0.3, 1, (paths, 2 * PIECE_VALUES + 7)).astype(np.float32)
    weights = path_weights(list(range(1, paths + 1)))
    mean = WeightedMean()
    added = [mean.add({"block": {"w": g}}, w) for g, w in zip(gradients, weights, strict=True)]
    norms = [norm.whole for norm in added]
    np.testing.assert_allclose(norms, np.linalg.norm(gradients, axis=1), rtol=1e-5)
    got = mean_cosine(weights.tolist(), norms, float(np.linalg.norm(mean.take()["block"]["w"])))
    total = parts = 0.0
    for i in range(paths):
        for j in set(range(paths)) - {i}:
            pair = weights[i] * weights[j] * norms[i] * norms[j]
            total += pair * float(gradients[i] @ gradients[j]) / (norms[i] * norms[j])
            parts += pair
    assert got == pytest.approx(total / parts, abs=1e-4)


def test_cosines_at_the_ends():
    assert mean_cosine([0.5, 0.5], [1.0, 3.0], 2.0) == pytest.approx(1.0)
    assert mean_cosine([0.5, 0.5], [1.0, 1.0], 0.0) == pytest.approx(-1.0)
    assert np.isnan(mean_cosine([1.0], [1.0], 1.0))
    assert np.isnan(mean_cosine([0.5, 0.5], [0.0, 0.0], 0.0))


def test_outer_steps_leave_the_threads_of_blas_alone(monkeypatch):
    """They wait for each other on a machine with other work."""
    for name in ("vdot", "dot", "inner", "matmul"):
        monkeypatch.setattr(np, name, lambda *_: pytest.fail("given to BLAS"))
    mean, leaf = WeightedMean(), np.full(3 * PIECE_VALUES + 1, 2, np.float32)
    norms = [mean.add({"block": {"w": leaf}}, weight) for weight in (0.25, 0.75, 0.0)]
    assert [norm.whole for norm in norms] == pytest.approx([2 * leaf.size**0.5] * 3)
    settings, before = OuterSettings(), {"block": {"w": leaf.copy()}}
    stepped = outer_step(settings, before, mean.take(), first_outer_state(settings, before), 1)
    assert stepped.gradient_norm == pytest.approx(2 * leaf.size**0.5)
