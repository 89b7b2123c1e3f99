"""sparse2: which values are sent, how near they come, whose they are, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dipaco import trees
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
from dipaco.outer.codecs.sparse2 import largest_places, sparse2, two_means
from dipaco.outer.compress import encode_contribution
from dipaco.outer.errors import BadEncoding

SPARSE = sparse2(64)


def there_and_back(gradient, codec=SPARSE):
    decoded = codec.decode(codec.encode(gradient), trees.outline(gradient))
    assert trees.difference(gradient, decoded) is None
    return decoded


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_the_largest_of_every_block_are_sent_and_nothing_else():
    values = random(3, 4096)
    sent = there_and_back({"w": values.reshape(192, 64)})["w"].reshape(3, 4096)
    for block, of_block in zip(values, sent, strict=True):
        largest = np.sort(np.argsort(-np.abs(block))[:64])
        np.testing.assert_array_equal(np.flatnonzero(of_block), largest)
        np.testing.assert_array_equal(np.sign(of_block[largest]), np.sign(block[largest]))
        assert len(np.unique(np.abs(of_block[largest]))) == 2


def test_two_magnitudes_in_a_byte_lose_little_of_what_is_sent():
    """Of the energy of what is sent 2 % is lost, where one magnitude loses 4 %."""
    values = random(64, 4096)
    sent = there_and_back({"w": values})["w"]
    of_sent = np.where(sent != 0, values, 0)
    lost = np.square(of_sent - sent).sum() / np.square(of_sent).sum()
    sizes = np.abs(of_sent[of_sent != 0]).reshape(64, 64)
    with_one = 1 - 64 * np.square(sizes.mean(axis=1)).sum() / np.square(sizes).sum()
    assert lost < 0.6 * with_one
    assert lost < 0.01


@given(arrays(np.float32, (3, 17), elements=st.sampled_from([0, 1, 2, 2.5, 3])), st.integers(1, 17))
def test_of_equal_values_the_first_are_sent(magnitudes, count):
    """So that every machine sends the same: a partition alone does not say which."""
    expected = np.sort(np.argsort(-magnitudes, axis=1, kind="stable")[:, :count], axis=1)
    np.testing.assert_array_equal(largest_places(magnitudes, count), expected)


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


WIDTH, TOKENS, RARE = 128, 256, 7


def one_rare_token(seed):
    """Gradients of an embedding in which one token moves a thousandth as far as the others."""
    table = random(TOKENS, WIDTH, seed=seed)
    table[RARE] *= 1e-3
    return table


def phases_until_sent(gradient_of, codec, phases=12):
    """After how many phases a value of the rare token was sent; None: never."""
    residual = None
    for phase in range(phases):
        gradient = gradient_of(phase)
        sent = encode_contribution(codec, gradient, residual)
        residual = sent.residual
        ((_, leaf),) = trees.flatten(codec.decode(sent.message, gradient))
        rare = leaf[RARE] if leaf.shape[0] == TOKENS else leaf[:, RARE]
        if rare.any():
            return phase + 1
    return None


def test_a_rare_token_is_sent_in_every_phase_where_blocks_alone_would_never_send_it():
    def as_embedding(phase):
        return {"embed": {"table": one_rare_token(phase)}}

    def as_head(phase):
        return {"head": {"kernel": one_rare_token(phase).T.copy()}}

    def as_another_leaf(phase):
        return {"block_00": {"w": one_rare_token(phase)}}

    for codec in (SPARSE, sparse2(128)):
        assert phases_until_sent(as_embedding, codec) == 1
        assert phases_until_sent(as_head, codec) == 1
        assert phases_until_sent(as_another_leaf, codec) is None


def test_what_is_sent_of_a_rare_token_has_its_own_magnitude():
    sent = there_and_back({"embed": {"table": one_rare_token(0)}})["embed"]["table"][RARE]
    np.testing.assert_allclose(np.abs(sent).max(), np.abs(one_rare_token(0)[RARE]).max(), rtol=0.05)


def test_half_of_the_places_go_to_the_largest_of_all_tokens():
    """A token that moves ten times as far as 31 others has more than its share of the places."""
    table = random(32, WIDTH)
    table[5] *= 10
    sent = np.count_nonzero(there_and_back({"embed": {"table": table}})["embed"]["table"], axis=1)
    assert sent.min() == 1
    assert sent[5] >= 32
    assert sent.sum() <= 64


def test_a_head_is_sent_as_an_embedding_of_the_same_tokens():
    table = random(50, 96)
    embed = there_and_back({"embed": {"table": table}})["embed"]["table"]
    head = there_and_back({"head": {"kernel": table.T.copy()}})["head"]["kernel"]
    np.testing.assert_array_equal(head.T, embed)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (64,), (4097,), (3, 5000), (0, 7), (2, 3, 4)])
def test_leaves_of_any_shape_come_back_in_it(shape):
    sent = there_and_back({"w": random(*shape)})["w"]
    assert np.count_nonzero(sent) >= (np.prod(shape) > 0)


@pytest.mark.parametrize("tokens", [0, 1, 2, 33])
@pytest.mark.parametrize("width", [3, 64, 100, 4096, 5000])
def test_a_vocabulary_of_any_size_comes_back(tokens, width):
    """Also of a width beyond a block, and with no token at all (none is sent)."""
    sent = there_and_back(
        {"embed": {"table": random(tokens, width)}, "head": {"kernel": random(width, tokens)}}
    )
    if width >= 128:
        assert sent["embed"]["table"].any(axis=1).all()
        assert sent["head"]["kernel"].any(axis=0).all()


LIKE = {"w": np.zeros(20, np.float32)}  # three places of five bits
PLACES = pack(np.array([1, 4, 9]), 5)
LEVELS = pack(np.array([3, 1, 2]), 2)
THREE = sparse2(614)


def sealed(largest=4.0, like=LIKE, places=PLACES, levels=LEVELS, scales=(0, 8)):
    """A message with the right checksum, as a program that is wrong would make it."""
    scales = np.array(scales, np.uint8)
    streams = {"places": [places], "levels": [levels], "scales": [scales]}
    return seal("sparse2", like, [np.float32(largest)], streams)


def changed(**leaves):
    ((tag, good),) = sealed().items()
    return {tag: {name: leaf for name, leaf in (good | leaves).items() if leaf is not None}}


def test_a_message_by_hand():
    decoded = THREE.decode(sealed(), LIKE)["w"]
    expected = np.zeros(20)
    expected[[1, 4, 9]] = -4, -2, 4
    np.testing.assert_array_equal(decoded, expected)
    assert trees.digest(THREE.encode({"w": decoded})) == trees.digest(sealed())


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({}, "it begins with nothing, and messages of this run with sparse2-1"),
        ({"int4-1": {}}, "it begins with int4-1"),
        ({"sparse2-1": np.uint8([1])}, "it begins with sparse2-1"),
        (changed(places=None), "it has no `places`"),
        (changed(checksum=None), "it has no `checksum`"),
        (changed(places={"of": PLACES}), "it has no `places`"),
        (changed(more=PLACES), "`more` was not expected"),
        (changed(places=PLACES[:1]), r"`places` is uint8\[1\], expected uint8\[2\]"),
        (changed(places=PLACES[None]), r"`places` is uint8\[1, 2\], expected uint8\[2\]"),
        (changed(levels=LEVELS.astype(np.int8)), r"`levels` is int8\[1\], expected uint8"),
        (changed(largest=np.float32([])), r"`largest` is float32\[0\], expected float32\[1\]"),
        (changed(levels=pack(np.array([3, 1, 3]), 2)), "its checksum is not that of its val"),
        (sealed(like={"v": LIKE["w"]}), "its checksum is not that of its values"),
        (sealed(like={"w": LIKE["w"].reshape(4, 5)}), "its checksum is not that of its values"),
        (sealed(largest=np.nan), "a largest value is negative, infinite or not a number"),
        (sealed(largest=-1), "a largest value is negative"),
        (sealed(places=pack(np.array([1, 1, 9]), 5)), "places of `w` do not rise"),
        (sealed(places=pack(np.array([4, 1, 9]), 5)), "places of `w` do not rise"),
        (sealed(places=pack(np.array([1, 4, 20]), 5)), "or lie outside their block"),
        (sealed(places=PLACES | np.uint8([0, 128])), "`w` is followed by bits that no value has"),
        (sealed(levels=LEVELS | np.uint8(128)), "`w` is followed by bits that no value has"),
        (sealed(scales=(8, 0)), "the larger magnitude of a block of `w` is the smaller"),
    ],
)
def test_a_message_that_encode_cannot_have_made_is_refused_with_a_reason(message, problem):
    with pytest.raises(BadEncoding, match=problem):
        THREE.decode(message, LIKE)


def test_a_message_with_another_number_of_places_is_refused():
    gradient = {"w": random(64, 64)}
    with pytest.raises(BadEncoding, match=r"`places` is uint8\[96\], expected uint8\[192\]"):
        sparse2(128).decode(SPARSE.encode(gradient), gradient)
