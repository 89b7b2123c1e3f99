"""Every codec can be measured."""

import argparse

import bench_bytes
import pytest

from dipaco.outer.config import CODECS


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_has_a_run(codec):
    dials = argparse.Namespace(experts=2, phases=4, send_snapshots_every=1, width=64)
    outer = bench_bytes.config_of(dials, codec).outer
    assert outer.codec == codec
