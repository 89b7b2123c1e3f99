"""Small models for the tests of this room."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco.model.config import ModelConfig
from dipaco.model.spec import describe

TINY = ModelConfig(vocab_size=64, d_model=16, num_layers=2, num_heads=4, d_ff=32, max_length=32)
GROUPED = dataclasses.replace(TINY, num_kv_heads=2, head_dim=6, qk_norm=True, rope_theta=500.0)
TIED = dataclasses.replace(TINY, num_kv_heads=1, tied_head=True)


@pytest.fixture(params=[GROUPED, TIED], ids=["qwen3", "tied"])
def config(request):
    return request.param


@pytest.fixture
def parts(config):
    return lively(config)


@pytest.fixture
def tokens_BT():
    return np.random.default_rng(1).integers(0, TINY.vocab_size, (3, 12), np.int32)


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a path is a path is a path, and so on"], trainer)
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def lively(config):
    """Parameters of a size at which each of them matters: norms are not 1, scores are not flat."""
    rng = np.random.default_rng(0)

    def values(spec):
        around = 1.0 if len(spec.shape) == 1 else 0.0
        return rng.normal(around, 0.3, spec.shape).astype(np.float32)

    return jax.tree.map(values, describe(config))
