"""What reads text, on other machines than those that train."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco.model import lm
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


@pytest.mark.parametrize("piece_bytes", [1, 64 * 300 * 4 // 8, 2 * 64 * 300 * 4])
def test_scores_in_pieces_of_rows_and_of_lengths_are_those_of_the_whole(monkeypatch, piece_bytes):
    random = np.random.default_rng(0)
    tokens_BT = random.integers(1, 300, (4, 64)).astype(np.int32)
    segments_BT = np.sort(random.integers(0, 3, (4, 64)), axis=1).astype(np.int32)
    parts = Programs(TOY).initial_parts()
    whole = ScoringPrograms(TOY).log_likelihoods(parts)(tokens_BT, segments_BT)
    monkeypatch.setattr(lm, "PIECE_BYTES", piece_bytes)
    pieces = ScoringPrograms(TOY).log_likelihoods(parts)(tokens_BT, segments_BT)
    np.testing.assert_allclose(pieces, whole, atol=1e-5)


def test_scoring_with_a_large_vocabulary_takes_less_memory_than_a_training_step():
    """By the compiler: 64 rows of 1,024 tokens at Qwen's vocabulary have 40 GB of logits."""
    model = dataclasses.replace(TOY.model, vocab_size=151_936, max_length=1024)
    inner = dataclasses.replace(TOY.inner, batch_size=64, accumulation_steps=16, loss_chunks=4)
    data = dataclasses.replace(TOY.data, length=1024)
    config = dataclasses.replace(TOY, model=model, inner=inner, data=data)
    programs = Programs(config)
    rows = jax.ShapeDtypeStruct((64, 1024), np.int32)
    batch = dict.fromkeys(("tokens", "segments", "positions"), rows)
    training = programs.step.lower(programs.state_like, batch, np.float32(0)).compile()
    like = programs.state_like.parts
    scoring = ScoringPrograms(config).log_likelihood_program.lower(like, rows, rows).compile()
    scratch = [each.memory_analysis().temp_size_in_bytes for each in (scoring, training)]
    assert scratch[0] <= scratch[1] < 4 * lm.PIECE_BYTES
