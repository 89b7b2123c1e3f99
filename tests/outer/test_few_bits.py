"""int4 and int2: the nearest power of two, two means, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dipaco import trees
from dipaco.outer.codecs.int2 import CODEC as INT2
from dipaco.outer.codecs.int2 import two_means
from dipaco.outer.codecs.int4 import CODEC as INT4
from dipaco.outer.codecs.packing import (
    ZERO,
    codes_of,
    has_clean_end,
    magnitudes_of,
    num_bytes,
    pack,
    unpack,
)
from dipaco.outer.codecs.sealed import seal
from dipaco.outer.errors import BadEncoding

POWERS = [0, *(2.0**e for e in range(-6, 1))]


def there_and_back(values, codec=INT4):
    gradient = {"w": np.float32(values)}
    return codec.decode(codec.encode(gradient), trees.outline(gradient))["w"]


def test_every_value_becomes_the_nearest_of_its_blocks_powers():
    values = np.random.default_rng(0).uniform(-1, 1, 2000) ** 3
    values[::256] = 1  # the scale of each block
    grid = np.array([*POWERS, *(-power for power in POWERS)])
    nearest = grid[np.abs(values[:, None] - grid).argmin(axis=1)]
    np.testing.assert_array_equal(there_and_back(values), np.float32(nearest))


def test_powers_of_two_below_the_largest_are_exact_and_smaller_ones_vanish():
    values = [4.0, -2.0, 1.0, -0.5, 0.0625, -0.0625, 0.015625, 0.0]
    np.testing.assert_array_equal(there_and_back(values), [4, -2, 1, -0.5, 0.0625, -0.0625, 0, 0])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 127, 128, 129])
@pytest.mark.parametrize("codec", [INT4, INT2], ids=["int4", "int2"])
def test_leaves_of_any_size_come_back(size, codec):
    values = np.random.default_rng(size).standard_normal(size)
    signs = there_and_back(np.sign(values), codec)
    np.testing.assert_array_equal(signs, np.float32(np.sign(values)))


@pytest.mark.parametrize(
    ("codec", "stream"),
    [
        (codec, stream)
        for codec, own in ((INT4, "values"), (INT2, "levels"))
        for stream in (own, "scales", "largest", "checksum")
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_damaged_message_is_refused(codec, stream):
    gradient = {"w": np.float32([1, 2, 3])}
    ((tag, good),) = codec.encode(gradient).items()
    wrong = good[stream].copy()
    wrong.view(np.uint8)[0] ^= 1
    with pytest.raises(BadEncoding, match="its checksum is not that of its values"):
        codec.decode({tag: {**good, stream: wrong}}, gradient)
    with pytest.raises(BadEncoding, match=f"it has no `{stream}`"):
        codec.decode({tag: {name: each for name, each in good.items() if name != stream}}, gradient)
    with pytest.raises(BadEncoding, match=r"is uint8\[\d\], expected uint8\[\d+\]"):
        codec.decode({tag: good}, {"w": np.ones(700, np.float32)})


@pytest.mark.parametrize(
    ("levels", "scales", "problem"),
    [
        ([0b00100111], [8, 0], "the larger magnitude .* is the smaller"),
        ([0b11100111], [0, 8], "followed by bits"),
    ],
)
def test_a_sealed_message_that_int2_cannot_have_made_is_refused(levels, scales, problem):
    gradient = {"w": np.float32([1, 2, 3])}
    streams = {"levels": [np.uint8(levels)], "scales": [np.uint8(scales)]}
    message = seal("int2", gradient, [np.float32(3)], streams)
    with pytest.raises(BadEncoding, match=problem):
        INT2.decode(message, gradient)


def test_int2_keeps_signs_and_two_magnitudes_of_each_block():
    values = np.random.default_rng(0).standard_normal((4, 128))
    got = there_and_back(values, INT2)
    np.testing.assert_array_equal(np.sign(got), np.sign(values))
    assert [len(np.unique(np.abs(block))) for block in got] == [2] * 4
    assert np.square(got - values).mean() < 0.14  # of normal values of variance one


@given(arrays(np.int64, st.integers(1, 9), elements=st.integers(0, 2**32)))
@settings(max_examples=60)
def test_the_two_magnitudes_are_those_of_least_squared_error(units):
    """Against every way of parting the sorted values."""

    def error(large, small):
        return sum(
            float(np.square(part - part.mean()).sum()) for part in (large, small) if len(part)
        )

    falling = -np.sort(-units)
    least = min(error(falling[:cut], falling[cut:]) for cut in range(1, len(units) + 1))
    is_large, codes = two_means(units[None])
    chosen = error(units[is_large[0]], units[~is_large[0]])
    assert chosen == pytest.approx(least, rel=1e-6, abs=1e3)
    assert codes[0, 0] <= codes[0, 1]


def test_a_magnitude_comes_back_within_half_a_step_and_zero_as_zero():
    shares = np.concatenate([[0.0, 1.0, 2.0**-33], np.geomspace(2.0**-31, 1, 999)])
    back = magnitudes_of(codes_of(shares), np.float32(1))
    assert back[0] == back[2] == 0
    assert back[1] == 1
    np.testing.assert_allclose(back[3:], shares[3:], rtol=2 ** (1 / 16) - 1 + 1e-6)
    assert codes_of(np.float64([0])) == ZERO
    np.testing.assert_array_equal(
        codes_of(magnitudes_of(np.arange(255), np.float32(1))), range(255)
    )


@pytest.mark.parametrize("width", range(1, 17))
def test_packed_numbers_take_their_bits_and_come_back(width):
    numbers = np.random.default_rng(width).integers(0, 1 << width, 77)
    packed = pack(numbers, width)
    assert len(packed) == num_bytes(77, width) == -(-77 * width // 8)
    np.testing.assert_array_equal(unpack(packed, 77, width), numbers)
    assert has_clean_end(packed, 77, width)
    if 77 * width % 8:
        packed[-1] |= 128
        assert not has_clean_end(packed, 77, width)
