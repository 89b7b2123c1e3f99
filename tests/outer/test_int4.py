"""int4: the nearest power of two, and what is refused."""

import numpy as np
import pytest

from dipaco import trees
from dipaco.outer.codecs.int4 import CODEC
from dipaco.outer.errors import BadEncoding

POWERS = [0, *(2.0**e for e in range(-6, 1))]


def there_and_back(values):
    gradient = {"w": np.float32(values)}
    return CODEC.decode(CODEC.encode(gradient), trees.outline(gradient))["w"]


def test_every_value_becomes_the_nearest_of_its_blocks_powers():
    values = np.random.default_rng(0).uniform(-1, 1, 2000) ** 3
    values[::256] = 1  # the scale of each block
    grid = np.array([*POWERS, *(-power for power in POWERS)])
    nearest = grid[np.abs(values[:, None] - grid).argmin(axis=1)]
    np.testing.assert_array_equal(there_and_back(values), np.float32(nearest))


def test_powers_of_two_below_the_largest_are_exact_and_smaller_ones_vanish():
    values = [4.0, -2.0, 1.0, -0.5, 0.0625, -0.0625, 0.015625, 0.0]
    np.testing.assert_array_equal(there_and_back(values), [4, -2, 1, -0.5, 0.0625, -0.0625, 0, 0])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257])
def test_leaves_of_any_size_come_back(size):
    values = np.random.default_rng(size).standard_normal(size)
    np.testing.assert_array_equal(np.sign(there_and_back(np.sign(values))), np.sign(values))


@pytest.mark.parametrize("leaf", ["values", "scales", "largest", "checksum"])
def test_a_damaged_message_is_refused(leaf):
    gradient = {"w": np.float32([1, 2, 3])}
    ((tag, good),) = CODEC.encode(gradient).items()
    wrong = good[leaf].copy()
    wrong.view(np.uint8)[0] ^= 1
    with pytest.raises(BadEncoding, match="its checksum is not that of its values"):
        CODEC.decode({tag: {**good, leaf: wrong}}, gradient)
    with pytest.raises(BadEncoding, match=f"it has no `{leaf}`"):
        CODEC.decode({tag: {name: each for name, each in good.items() if name != leaf}}, gradient)
    with pytest.raises(BadEncoding, match=r"`values` is uint8\[2\], expected uint8\[1\]"):
        CODEC.decode({tag: good}, {"w": np.float32([1, 2])})
