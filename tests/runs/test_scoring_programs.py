"""What reads text, on other machines than those that train."""

import dataclasses

import numpy as np

from dipaco.model.config import MeshConfig
from dipaco.runs.programs import Programs
from dipaco.runs.scoring_programs import ScoringPrograms
from tests.support.tiny_run import TOY

CUDNN = dataclasses.replace(TOY.model, compute_dtype="bfloat16", attention_kernel="cudnn")


def test_with_fewer_devices_than_the_mesh_has_one_of_them_scores():
    tokens_BT = np.random.default_rng(0).integers(1, 300, (2, 64)).astype(np.int32)
    parts = Programs(TOY).initial_parts()
    expected = ScoringPrograms(TOY)
    larger = ScoringPrograms(dataclasses.replace(TOY, mesh=MeshConfig(tensor=16)))
    segments_BT = np.ones_like(tokens_BT)
    for programs in (expected, larger):
        assert len(programs.hidden(parts)(tokens_BT).sharding.device_set) == 1
    np.testing.assert_array_equal(
        larger.log_likelihoods(parts)(tokens_BT, segments_BT),
        expected.log_likelihoods(parts)(tokens_BT, segments_BT),
    )


def test_with_all_its_devices_the_mesh_scores():
    parts = Programs(TOY).initial_parts()
    programs = ScoringPrograms(dataclasses.replace(TOY, mesh=MeshConfig(tensor=2)))
    hidden = programs.hidden(parts)(np.ones((2, 64), np.int32))
    assert len(hidden.sharding.device_set) == 2


def test_what_was_trained_with_the_kernel_of_a_gpu_is_scored_without_one():
    config = dataclasses.replace(TOY, model=CUDNN)
    parts = Programs(config).initial_parts()
    hidden = ScoringPrograms(config).hidden(parts)(np.ones((2, 64), np.int32))
    assert np.isfinite(hidden).all()
