"""The contract of codecs, one line each; what error feedback gives back, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dipaco import trees
from dipaco.outer.codecs.contract import LARGE
from dipaco.outer.compress import codec_of, encode_contribution, encode_rows
from dipaco.outer.config import CODECS, OuterSettings
from dipaco.outer.errors import BadEncoding, NotFinite

# Largest error of a value, as a share of the largest value that it shares a scale with: half a step
# of the grid, and float32's own rounding. int4 rounds to powers of two of a scale that is up to 4.5
# % off, and int2 to one of two means.
ERROR_BOUND = {"none": 0.0, "bfloat16": 2.0**-8, "int8": 0.5 / 127, "int4": 0.27, "int2": 0.95}
BITS = {
    "none": 32,
    "bfloat16": 16,
    "int8": 8.125,
    "int4": 4.031,
    "int2": 2.125,
}
ROUNDING = 1e-6


def codec(name):
    return codec_of(OuterSettings(codec=name))


def there_and_back(name, gradient):
    return codec(name).decode(codec(name).encode(gradient), trees.outline(gradient))


finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
leaves = arrays(np.float32, array_shapes(min_dims=0, max_dims=3, max_side=24), elements=finite)


def tree(leaf):
    return {"block_00": {"attention": {"query": leaf}}, "head": {"w": np.float32([0, -0.0, 3])}}


def some(seed, size=1000):
    return tree(np.random.default_rng(seed).standard_normal((size // 10, 10), np.float32))


def test_every_codec_that_can_be_set_is_here_and_in_this_table():
    assert set(CODECS) == set(ERROR_BOUND) == set(BITS)
    assert all(codec(name).name == name for name in CODECS)


@pytest.mark.parametrize("name", CODECS)
@given(leaf=leaves)
@settings(max_examples=50)
def test_a_decoded_gradient_has_shape_and_type_of_the_original_and_is_near_it(name, leaf):
    gradient = tree(leaf)
    decoded = there_and_back(name, gradient)
    assert trees.difference(gradient, decoded) is None
    for (_, value), (_, of) in zip(trees.flatten(decoded), trees.flatten(gradient), strict=True):
        assert np.isfinite(value).all()
        error = np.abs(np.float64(value) - of)
        largest = np.abs(of) if name == "bfloat16" else np.max(np.abs(of), initial=0)
        assert (error <= np.float64(largest) * (ERROR_BOUND[name] + ROUNDING)).all()


@pytest.mark.parametrize("name", CODECS)
def test_encoding_is_deterministic_and_leaves_the_gradient_alone(name):
    gradient, before = some(0), trees.digest(some(0))
    first, second = codec(name).encode(gradient), codec(name).encode(gradient)
    assert trees.digest(first) == trees.digest(second)
    codec(name).decode(first, gradient)
    assert trees.digest(gradient) == before


@pytest.mark.parametrize("name", CODECS)
def test_zero_stays_zero(name):
    assert not there_and_back(name, {"w": np.zeros((64, 256), np.float32)})["w"].any()


@pytest.mark.parametrize("name", CODECS)
def test_a_message_has_the_bits_that_its_codec_states(name):
    """Counted from the message, of leaves of all kinds; bits of a leaf are filled up to bytes."""
    shapes = {"embed.table": (37, 96), "head.kernel": (96, 37), "block.w": (130, 64), "norm": (96,)}
    gradient = trees.unflatten({n: np.ones(shape, np.float32) for n, shape in shapes.items()})
    stated = sum(codec(name).leaf_bits(shape) for shape in shapes.values())
    counted = 8 * trees.num_bytes(codec(name).encode(gradient))
    assert counted - stated == (32 if name in ("int4", "int2") else 0)  # the checksum
    assert codec(name).bits_per_value == pytest.approx(BITS[name], abs=1e-3)
    assert codec(name).leaf_bits((LARGE, LARGE)) >= BITS[name] * LARGE**2 - LARGE


@pytest.mark.parametrize("name", CODECS)
def test_with_error_feedback_decoded_gradients_sum_to_the_true_ones_up_to_one_residual(name):
    of, rounds, residual = codec(name), 40, None
    truth, decoded = np.zeros((100, 10)), np.zeros((100, 10))
    for phase in range(rounds):
        gradient = some(phase)
        sent = encode_contribution(of, gradient, residual)
        residual = sent.residual
        truth += gradient["block_00"]["attention"]["query"]
        decoded += of.decode(sent.message, gradient)["block_00"]["attention"]["query"]
    last = 0.0 if residual is None else residual["block_00"]["attention"]["query"]
    np.testing.assert_allclose(decoded + last, truth, atol=1e-5)
    # And the residual is that of one message, however many were sent.
    assert np.abs(decoded - truth).max() <= 6 * ERROR_BOUND[name] + 1e-5


def test_without_error_feedback_small_values_beside_large_ones_would_never_arrive():
    """What the residual is for: 0.001 of a scale of 1/127 is nothing, four times as well."""
    gradient = {"w": np.float32([1.0, 0.001])}
    int8, residual, arrived = codec("int8"), None, np.zeros(2)
    assert int8.decode(int8.encode(gradient), gradient)["w"][1] == 0
    for _ in range(40):
        sent = encode_contribution(int8, gradient, residual)
        residual = sent.residual
        arrived += int8.decode(sent.message, gradient)["w"]
    assert arrived[1] == pytest.approx(0.04, abs=0.5 / 127)


def test_the_residual_of_a_row_that_is_not_sent_waits_for_it():
    rows = {"embed": {"table": np.float32([[8, 4, 1], [8, 4, 1]])}}
    owed = {"embed": {"table": np.float32([[1, 1, 1], [2, 2, 2]])}}
    left = encode_rows(codec("int2"), rows, owed, np.array([True, False])).residual
    np.testing.assert_array_equal(left["embed"]["table"][1], [2, 2, 2])
    sent = np.float32([9, 5, 2]) - left["embed"]["table"][0]
    np.testing.assert_allclose(sent, [9, 3.5, 3.5], rtol=0.05)


def test_a_plain_contribution_is_the_gradient_itself():
    gradient = some(0)
    assert encode_contribution(codec("none"), gradient, None) == (gradient, None)


def changed(message, **leaves):
    (name,) = message
    return {name: {**message[name], "w": {**message[name]["w"], **leaves}}}


WHOLE = {"w": np.float32([1, 2, 3])}
GOOD = codec("int8").encode(WHOLE)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"w": np.float32([1, 2, 3])}, "it begins with w, and messages of this run with int8-1"),
        (codec("bfloat16").encode({"w": np.float32([1])}), "it begins with bfloat16-1"),
        ({"int8-2": GOOD["int8-1"]}, "it begins with int8-2"),
        ({}, "it begins with nothing"),
        (changed(GOOD, scales=np.float32([np.nan])), "a scale of `w` is negative, infinite or not"),
        (changed(GOOD, scales=np.float32([-1])), "a scale of `w` is negative"),
        (changed(GOOD, scales=np.float32([1, 1])), r"`w` has scales \[2\], not \[1\]"),
        (changed(GOOD, scales=np.float64([1])), "with scales of float64, expected int8 with"),
        (changed(GOOD, values=np.int16([1, 2, 3])), "`w` is int16"),
        (changed(GOOD, more=np.int8([1])), r"`w\.more` was not expected"),
        ({"int8-1": {"w": {"values": np.int8([1])}}}, "`w` has no scales"),
    ],
)
def test_a_message_that_encode_cannot_have_made_is_refused_with_a_reason(message, problem):
    with pytest.raises(BadEncoding, match=problem):
        codec("int8").decode(message, WHOLE)


def test_bfloat16_refuses_other_types_and_other_codecs():
    good = codec("bfloat16").encode(WHOLE)
    assert good["bfloat16-1"]["w"].dtype == ml_dtypes.bfloat16
    with pytest.raises(BadEncoding, match="`w` is float32, expected bfloat16"):
        codec("bfloat16").decode({"bfloat16-1": WHOLE}, WHOLE)
    with pytest.raises(BadEncoding, match="it begins with int8-1"):
        codec("bfloat16").decode(GOOD, WHOLE)


@pytest.mark.parametrize(
    ("name", "value"),
    [("int8", np.inf), ("bfloat16", np.nan), ("int4", np.nan), ("int2", -np.inf)],
)
def test_a_gradient_that_is_not_finite_is_not_sent(name, value):
    with pytest.raises(NotFinite, match="`w`"):
        encode_contribution(codec(name), {"w": np.float32([1, value])}, None)
