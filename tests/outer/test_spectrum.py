"""Isotropic merging: what it does to a matrix's singular values, and what it leaves alone."""

import numpy as np
import pytest

from dipaco.outer.spectrum import flatten_spectrum, isotropic

RNG = np.random.default_rng(0)


def rotation(size):
    return np.linalg.qr(RNG.normal(size=(size, size)))[0]


def singular(matrix):
    return np.linalg.svd(matrix, compute_uv=False)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_all_singular_values_become_their_mean_and_their_sum_stays(shape):
    matrix = RNG.normal(size=shape).astype(np.float32)
    np.testing.assert_allclose(singular(isotropic(matrix)), singular(matrix).mean(), rtol=1e-5)


def test_a_matrix_by_hand():
    np.testing.assert_allclose(isotropic(np.float32([[0, 3], [1, 0]])), [[0, 2], [2, 0]])


@pytest.mark.parametrize(
    "matrix", [0.3 * rotation(4), np.outer([1, 2, 2], [3, 4]), np.zeros((2, 3))]
)
def test_a_matrix_that_moves_all_its_directions_as_far_stays_as_it_is(matrix):
    """Rotations, and matrices of one direction: no other direction comes from rounding."""
    np.testing.assert_allclose(isotropic(matrix.astype(np.float32)), matrix, atol=1e-6)


def test_other_axes_before_it_are_other_axes_after_it():
    """So it depends on the directions, and not on how a hidden layer is numbered or turned."""
    matrix, left, right = RNG.normal(size=(5, 3)), rotation(5), rotation(3)
    np.testing.assert_allclose(isotropic(left @ matrix @ right), left @ isotropic(matrix) @ right)


def test_embedding_head_and_vectors_stay_and_matrices_of_blocks_do_not():
    def parts():
        rng = np.random.default_rng(1)
        draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
        return {
            "block_00": {"attention": {"norm": draw(4), "query": draw(4, 4)}},
            "embed": {"table": draw(7, 4)},
            "final_norm": {"scale": draw(4)},
            "head": {"kernel": draw(4, 7)},
        }

    mean, before = parts(), parts()
    flatten_spectrum(mean)
    query = before["block_00"]["attention"].pop("query")
    got = mean["block_00"]["attention"].pop("query")
    np.testing.assert_array_equal(got, isotropic(query).astype(np.float32))
    assert got.dtype == np.float32
    for name in before:
        for leaf, other in zip(before[name].values(), mean[name].values(), strict=True):
            np.testing.assert_equal(other, leaf)
