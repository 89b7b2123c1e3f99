"""Rows of the vocabulary are averaged by the paths that have their tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.outer.compress import codec_of, encode_rows
from dipaco.outer.config import CODECS, OuterSettings
from dipaco.outer.gradient import WeightedMean, path_weights
from dipaco.outer.step import first_outer_state, outer_step
from dipaco.outer.vocabulary import (
    counts_of,
    effective_fan_in,
    has_rows,
    put_rows,
    row_shares,
    row_weights_in_step,
    sent_rows,
    take_rows,
)

PATHS, TOKENS, WIDTH = 3, 7, 4
ALPHA = path_weights([1, 2, 5])
counts = st.lists(
    st.lists(st.integers(0, 10**6), min_size=TOKENS, max_size=TOKENS),
    min_size=PATHS,
    max_size=PATHS,
).map(np.array)


def gradients(seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "embed": {"table": rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)},
            "head": {"kernel": rng.normal(size=(WIDTH, TOKENS)).astype(np.float32)},
            "block_00": {"w": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)},
        }
        for _ in range(PATHS)
    ]


def all_take_part(counts_PV):
    return counts_of(counts_PV, range(len(counts_PV)))


def mean_of(parts, counts_PV, *, rescale=False):
    """The mean, and the norms of what was added."""
    shares = row_shares(all_take_part(counts_PV), ALPHA)
    fan_in_V = effective_fan_in(shares)
    mean = WeightedMean()
    norms = [
        mean.add(
            gradient,
            weight,
            row_weights_in_step(share_V, fan_in_V, PATHS, rescale_by_fan_in=rescale),
        )
        for gradient, weight, share_V in zip(parts, ALPHA, shares, strict=True)
    ]
    return mean.take(), norms


@given(counts)
def test_shares_sum_to_one_and_are_zero_exactly_where_the_token_is_not(counts_PV):
    shares = row_shares(all_take_part(counts_PV), ALPHA)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    has_holder = counts_PV.sum(axis=0) > 0
    np.testing.assert_array_equal((shares == 0)[:, has_holder], (counts_PV == 0)[:, has_holder])
    for token in np.flatnonzero(~has_holder):
        np.testing.assert_array_equal(shares[:, token], ALPHA)
    fan_in = effective_fan_in(shares)
    assert (fan_in > 1 - 1e-9).all()
    assert (fan_in < PATHS + 1e-9).all()


def test_counts_in_proportion_to_documents_give_the_mean_of_the_paper():
    parts = gradients()
    counts_PV = np.outer([1, 2, 5], np.arange(1, TOKENS + 1))
    mean, _ = mean_of(parts, counts_PV)
    paper = WeightedMean()
    for gradient, weight in zip(parts, ALPHA, strict=True):
        paper.add(gradient, weight)
    expected = paper.take()
    for part, leaf in (("embed", "table"), ("head", "kernel"), ("block_00", "w")):
        np.testing.assert_allclose(mean[part][leaf], expected[part][leaf], rtol=1e-6)


def test_a_row_with_one_holder_is_the_row_of_that_path_alone():
    """Stepped plainly, the new row is what the holder made of it, also with the rescale."""
    parts = gradients()
    counts_PV = np.ones((PATHS, TOKENS), int)
    counts_PV[:, 4] = (0, 9, 0)
    mean, _ = mean_of(parts, counts_PV, rescale=True)
    plain = OuterSettings(learning_rate=1.0, momentum=0.0)
    zeros = {
        name: {leaf: np.zeros_like(v) for leaf, v in part.items()} for name, part in mean.items()
    }
    after = outer_step(plain, dict(zeros), mean, first_outer_state(plain, zeros), PATHS).after
    np.testing.assert_allclose(
        after["embed"]["table"][4], -parts[1]["embed"]["table"][4], rtol=1e-6
    )
    np.testing.assert_allclose(
        after["head"]["kernel"][:, 4], -parts[1]["head"]["kernel"][:, 4], rtol=1e-6
    )
    # Where all have as much of a token, the rescale is the paper's: root of three.
    by_hand = sum(part["embed"]["table"][0] for part in parts) / PATHS * np.sqrt(PATHS)
    np.testing.assert_allclose(after["embed"]["table"][0], -by_hand, rtol=1e-6)


def test_a_permutation_of_the_tokens_permutes_the_result():
    rng = np.random.default_rng(1)
    counts_PV, order = rng.integers(0, 3, (PATHS, TOKENS)), rng.permutation(TOKENS)
    parts = gradients()
    moved = [
        {
            "embed": {"table": part["embed"]["table"][order]},
            "head": {"kernel": part["head"]["kernel"][:, order]},
            "block_00": part["block_00"],
        }
        for part in parts
    ]
    mean, _ = mean_of(parts, counts_PV, rescale=True)
    permuted, _ = mean_of(moved, counts_PV[:, order], rescale=True)
    np.testing.assert_array_equal(permuted["embed"]["table"], mean["embed"]["table"][order])
    np.testing.assert_array_equal(permuted["head"]["kernel"], mean["head"]["kernel"][:, order])
    np.testing.assert_array_equal(permuted["block_00"]["w"], mean["block_00"]["w"])


def test_norms_are_those_of_the_contributions_whole_and_without_the_rows():
    parts = gradients()
    _, norms = mean_of(parts, np.ones((PATHS, TOKENS), int), rescale=True)
    for part, norm in zip(parts, norms, strict=True):
        squares = {
            name: sum(float(np.vdot(v, v)) for v in leaf.values()) for name, leaf in part.items()
        }
        assert norm.whole == pytest.approx(np.sqrt(sum(squares.values())), rel=1e-5)
        assert norm.by_weight == pytest.approx(np.sqrt(squares["block_00"]), rel=1e-5)


def test_sampling_cannot_move_a_row_whose_holder_takes_no_part():
    """Path 0 alone has token 0, and sits the phase out; tokens 3 and 4 nobody has."""
    counts = counts_of(np.array([[5, 0, 3, 0, 0], [0, 7, 2, 0, 0]]), [0, 1], [1])
    shares = row_shares(counts, np.array([1.0]))
    np.testing.assert_array_equal(shares, [[0, 1, 1, 1, 1]])
    np.testing.assert_array_equal(sent_rows(counts, 0), [False, True, True, True, True])
    weights = row_weights_in_step(shares[0], effective_fan_in(shares), 1, rescale_by_fan_in=True)
    np.testing.assert_array_equal(weights, [0, 1, 1, 1, 1])


def test_a_path_sends_the_rows_that_have_a_weight():
    counts_PV = np.array([[3, 0, 0, 1], [1, 5, 0, 0], [0, 0, 0, 2]])
    shares = row_shares(all_take_part(counts_PV), ALPHA)
    for path in range(PATHS):
        np.testing.assert_array_equal(sent_rows(all_take_part(counts_PV), path), shares[path] > 0)


@pytest.mark.parametrize("name", CODECS)
def test_rows_that_are_not_sent_change_no_mean_and_owe_nothing(name):
    """The mean of what is sent is the mean of everything; what a codec loses waits for its row."""
    codec = codec_of(OuterSettings(codec=name))
    rng = np.random.default_rng(3)
    counts_PV = rng.integers(0, 2, (PATHS, TOKENS))
    parts, sent, whole = gradients(), [], []
    for path, part in enumerate(parts):
        rows = sent_rows(all_take_part(counts_PV), path)
        owed = gradients(seed=9)[path] if codec.is_lossy else None
        encoded = encode_rows(codec, part, owed, rows)
        received = put_rows(codec.decode(encoded.message, take_rows(part, rows)), rows)
        sent.append(received)
        whole.append(part)
        assert not received["embed"]["table"][~rows].any()
        assert not received["head"]["kernel"][:, ~rows].any()
        if owed is not None:
            assert encoded.residual is not None
            left = encoded.residual["embed"]["table"]
            np.testing.assert_array_equal(left[~rows], owed["embed"]["table"][~rows])
            total = received["embed"]["table"] + left
            expected = part["embed"]["table"] + owed["embed"]["table"]
            np.testing.assert_allclose(total[rows], expected[rows], atol=1e-6)
    if name == "none":
        got, expected = (mean_of(each, counts_PV, rescale=True)[0] for each in (sent, whole))
        for part, leaf in (("embed", "table"), ("head", "kernel"), ("block_00", "w")):
            np.testing.assert_array_equal(got[part][leaf], expected[part][leaf])


def test_only_embedding_and_head_have_rows():
    (part, *_) = gradients()
    assert has_rows(part)
    assert not has_rows({"block_00": part["block_00"]})
