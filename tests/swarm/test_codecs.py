"""Every codec: within its error, zero stays zero, and what has another length is refused."""

import numpy as np
import pytest

from dipaco.errors import BadMessage
from dipaco.swarm.codecs import CODECS, codec_of

RELATIVE_ERROR = {"none": 0.0, "float16": 2**-11, "int8": 1 / 254}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_values_come_back_within_the_codecs_error(name, scale):
    values = (scale * np.random.default_rng(0).normal(size=1000)).astype(np.float32)
    codec = codec_of(name)
    sent = codec.encode(values)
    got = codec.decode(sent, 1000)
    assert got.dtype == np.float32
    limit = np.abs(values).max() * RELATIVE_ERROR[name] * 1.01
    assert np.abs(got - values).max() <= limit
    assert len(sent) * 8 <= codec.bits_per_value * 1024 + 64


@pytest.mark.parametrize("name", CODECS)
def test_zeros_and_nothing_at_all_come_back(name):
    codec = codec_of(name)
    for values in (np.zeros(300, np.float32), np.zeros(0, np.float32)):
        np.testing.assert_array_equal(codec.decode(codec.encode(values), len(values)), values)


@pytest.mark.parametrize("name", CODECS)
def test_a_message_that_is_cut_short_is_refused(name):
    sent = codec_of(name).encode(np.ones(300, np.float32))
    with pytest.raises(BadMessage, match="bytes of values"):
        codec_of(name).decode(sent[:-1], 300)


def test_an_infinity_stays_visible_to_whoever_checks():
    values = np.array([1.0, np.inf, np.nan], np.float32)
    assert not np.isfinite(codec_of("none").decode(codec_of("none").encode(values), 3)).all()


def test_an_unknown_codec_is_refused():
    with pytest.raises(BadMessage, match="pickle"):
        codec_of("pickle")
