"""Every codec: values within its error, zeros exact, wrong lengths refused."""

import numpy as np
import pytest

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import CODECS, codec_of

ERROR_TO_LARGEST = {"none": 0.0, "int8": 1 / 254}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_values_come_back_within_the_codecs_error(name, scale):
    values = (scale * np.random.default_rng(0).normal(size=1000)).astype(np.float32)
    codec = CODECS[name]
    sent = codec.encode(values)
    got = codec.decode(sent, 1000)
    assert got.dtype == np.float32
    limit = np.abs(values).max() * ERROR_TO_LARGEST[name] * 1.01
    assert np.abs(got - values).max() <= limit
    assert len(sent) == codec.num_bytes(1000)


@pytest.mark.parametrize("name", CODECS)
def test_zeros_and_empty_arrays_come_back(name):
    codec = CODECS[name]
    for values in (np.zeros(300, np.float32), np.zeros(0, np.float32)):
        np.testing.assert_array_equal(codec.decode(codec.encode(values), len(values)), values)


@pytest.mark.parametrize("name", CODECS)
def test_a_message_that_is_cut_short_is_refused(name):
    sent = CODECS[name].encode(np.ones(300, np.float32))
    with pytest.raises(BadMessage, match="bytes of values"):
        CODECS[name].decode(sent[:-1], 300)


def test_an_infinity_survives_the_codec_so_that_checks_see_it():
    values = np.array([1.0, np.inf, np.nan], np.float32)
    assert not np.isfinite(codec_of("none").decode(codec_of("none").encode(values), 3)).all()


def test_the_tolerance_for_eight_bits_is_that_of_the_values_and_not_of_a_scale_far_above_them():
    """A liar's large scale and small steps would excuse any value."""
    values, codec = np.linspace(-1, 1, 512).astype(np.float32), codec_of("int8")
    honest = codec.encode(values)
    np.testing.assert_allclose(codec.rounding(honest, 512), 1 / 254, rtol=1e-6)
    scales, steps = np.frombuffer(honest[:8], "<f4"), np.frombuffer(honest[8:], np.int8)
    same_values = (127 * scales).astype("<f4").tobytes() + np.rint(steps / 127).astype(
        np.int8
    ).tobytes()
    assert np.abs(codec.decode(same_values, 512)).max() == pytest.approx(1)
    assert codec.rounding(same_values, 512).max() < 1.01 / 254


def test_an_unknown_codec_is_refused():
    with pytest.raises(BadMessage, match="pickle"):
        codec_of("pickle")
