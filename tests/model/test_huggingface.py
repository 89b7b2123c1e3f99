"""An independent oracle: `transformers` computes the same logits from the same weights.

PyTorch is heavy, so it stays out of the `test` extra; `.ci/run` installs the `parity` extra.
"""

import dataclasses
import json
import math
import os

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dipaco.errors import CheckpointExists
from dipaco.model import lm
from dipaco.model.config import ModelConfig
from dipaco.model.errors import BadCheckpoint
from dipaco.model.huggingface import EdgeToken, export_checkpoint, read_checkpoint
from dipaco.model.spec import initialise
from tests.model.conftest import TINY, lively

forward = jax.jit(lm.forward, static_argnums=0)


@pytest.fixture
def transformers():
    pytest.importorskip("torch", reason="parity with transformers needs the `parity` extra")
    return pytest.importorskip("transformers", reason="needs the `parity` extra")


def _their_logits(model, tokens_BT):
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens_BT, dtype=torch.long)).logits.float().numpy()


def test_an_exported_model_has_the_same_logits_in_transformers(
    transformers, config, parts, tokens_BT, tokenizer_file, tmp_path
):
    export_checkpoint(config, parts, tokenizer_file, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours, _ = forward(config, parts, tokens_BT)
    np.testing.assert_allclose(_their_logits(theirs, tokens_BT), ours, atol=2e-5)


@pytest.mark.parametrize(("kind", "dtype"), [("llama", "bfloat16"), ("qwen3", "float32")])
def test_a_model_made_by_transformers_has_the_same_logits_here(
    transformers, kind, dtype, tokens_BT, tmp_path
):
    import torch

    torch.manual_seed(0)
    # In several files with an index, as large checkpoints come.
    made = _make_theirs(transformers, kind).to(getattr(torch, dtype))
    made.save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    config, parts = read_checkpoint(tmp_path)
    assert (config.rope_theta, config.kv_heads, config.head_size) == (700.0, 2, 6)
    ours, _ = forward(config, parts, tokens_BT)
    # Read again: `made.float()` would keep rotary frequencies that were rounded to bfloat16.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    np.testing.assert_allclose(_their_logits(theirs, tokens_BT), ours, atol=2e-5)


@pytest.mark.slow
def test_a_model_of_8_million_parameters_agrees(transformers, tokenizer_file, tmp_path):
    config = ModelConfig(
        vocab_size=8192, d_model=256, num_layers=4, num_heads=4, d_ff=1024, max_length=256
    )
    parts = initialise(config, jax.random.key(0))
    tokens_BT = np.random.default_rng(0).integers(0, 8192, (2, 256), np.int32)
    export_checkpoint(config, parts, tokenizer_file, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours, _ = forward(config, parts, tokens_BT)
    np.testing.assert_allclose(_their_logits(theirs, tokens_BT), ours, atol=2e-4)


def test_a_wrong_theta_changes_the_logits(config, parts, tokens_BT):
    wrong = dataclasses.replace(config, rope_theta=2 * config.rope_theta)
    difference = forward(config, parts, tokens_BT)[0] - forward(wrong, parts, tokens_BT)[0]
    assert np.max(np.abs(difference)) > 100 * 1e-5


def test_the_exported_tokenizer_gives_the_same_tokens(transformers, tokenizer_file, tmp_path):
    import tokenizers

    export_checkpoint(TINY, lively(TINY), tokenizer_file, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    text = " a path, so  on\n\u05d0\u05d1 ."
    assert theirs(text)["input_ids"] == ours.encode(text).ids
    assert theirs.decode(theirs(text)["input_ids"]) == text


def test_the_export_names_where_texts_begin_and_end(transformers, tokenizer_file, tmp_path):
    end = EdgeToken(0, "<|endoftext|>")
    export_checkpoint(TINY, lively(TINY), tokenizer_file, tmp_path / "out", start=end, end=end)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 0, 0)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 0, None)
    settings = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (0, 0, 0)

    export_checkpoint(TINY, lively(TINY), tokenizer_file, tmp_path / "endless")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "endless").eos_token is None
    settings = transformers.GenerationConfig.from_pretrained(tmp_path / "endless")
    assert (settings.bos_token_id, settings.eos_token_id) == (None, None)


def test_old_and_new_transformers_find_the_rotary_base(tokenizer_file, tmp_path):
    """Version 4 reads `rope_theta` alone, and 5 `rope_parameters`."""
    config = dataclasses.replace(TINY, rope_theta=700.0)
    export_checkpoint(config, lively(config), tokenizer_file, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 700.0


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_the_rotary_base_is_found_beside_the_kind_of_rotary_positions(
    name, tokenizer_file, tmp_path
):
    """Also by the older of its names, as `transformers` 5 does."""
    changes = {"rope_parameters": None, name: {"rope_type": "default", "rope_theta": 1e6}}
    _damage(tmp_path, tokenizer_file, changes, remove="rope_theta")
    assert read_checkpoint(tmp_path / "out")[0].rope_theta == 1e6


def test_an_exported_model_is_read_back(config, parts, tokenizer_file, tmp_path):
    export_checkpoint(config, parts, tokenizer_file, tmp_path / "out")
    again, values = read_checkpoint(tmp_path / "out")
    written_out = {"num_kv_heads": config.kv_heads, "head_dim": config.head_size}
    assert again == dataclasses.replace(config, **written_out)
    jax.tree.map(np.testing.assert_array_equal, values, parts)


def test_an_export_is_whole_or_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        export_checkpoint(TINY, lively(TINY), tmp_path / "no_tokenizer.json", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_export_does_not_overwrite(tokenizer_file, tmp_path):
    with pytest.raises(CheckpointExists, match="never overwrites"):
        export_checkpoint(TINY, lively(TINY), tokenizer_file, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"rope_theta": 5e5}, "`rope_theta` is given as .*500000.0"),
        ({"rope_scaling": {"rope_theta": 5e5}}, "`rope_theta` is given as .*500000.0"),
        ({"rope_parameters": None, "rope_theta": math.inf}, "`rope_theta` is no finite number"),
        ({"rms_norm_eps": 10**400}, "`rms_norm_eps` is no finite number"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "layer by layer"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 3}, "missing: model.layers.2"),
        ({"num_hidden_layers": 1}, "not understood: model.layers.1"),
        ({"intermediate_size": 16}, "another shape"),
        ({"num_attention_heads": 3, "head_dim": None}, "divisor"),
        # Values of another type:
        ({"hidden_size": "16"}, "`hidden_size` is '16', and should be a whole number"),
        ({"vocab_size": True}, "`vocab_size` is True"),
        ({"rms_norm_eps": None}, "`rms_norm_eps` is None, and should be a number"),
        ({"tie_word_embeddings": None}, "`tie_word_embeddings` is None"),
        ({"rope_parameters": {"rope_theta": None}}, "`rope_theta` is None"),
        ({"rope_parameters": [1]}, "`rope_parameters` is"),
        ({"architectures": "LlamaForCausalLM"}, "`architectures` is 'LlamaForCausalLM'"),
        ({"architectures": [{}]}, "architecture is {}"),
        ({"layer_types": 5}, "`layer_types` is 5"),
    ],
)
def test_a_checkpoint_that_would_mean_something_else_is_refused(
    changes, said, tokenizer_file, tmp_path
):
    _damage(tmp_path, tokenizer_file, changes)
    with pytest.raises(BadCheckpoint, match=said):
        read_checkpoint(tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "[]", "config.json is no JSON object"),
        ("model.safetensors.index.json", "[]", "index.json is no JSON object"),
        ("model.safetensors.index.json", "{}", "index.json names no file for each weight"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "names no file for each"),
        ("model.safetensors.index.json", "[" * 100_000, "index.json cannot be read"),
        ("config.json", "[" * 100_000, "config.json cannot be read"),
    ],
)
def test_json_of_another_form_is_refused(file, content, said, tokenizer_file, tmp_path):
    _damage(tmp_path, tokenizer_file, {})
    (tmp_path / "out" / file).write_text(content)
    with pytest.raises(BadCheckpoint, match=said):
        read_checkpoint(tmp_path / "out")


def test_a_weight_that_the_index_does_not_know_of_is_named(tokenizer_file, tmp_path):
    """Of a weight in two files, `transformers` takes the last. The index may name the other."""
    _damage(tmp_path, tokenizer_file, {})
    first, second = (tmp_path / "out" / f"{name}.safetensors" for name in ("model", "second"))
    names = list(load_file(first))
    second.write_bytes(first.read_bytes())
    index = dict.fromkeys(names, first.name)

    def write_index():
        index_file = tmp_path / "out" / "model.safetensors.index.json"
        index_file.write_text(json.dumps({"weight_map": index}))

    write_index()
    read_checkpoint(tmp_path / "out")
    index[names[0]] = "\ud800"
    write_index()
    with pytest.raises(BadCheckpoint, match=r"cannot be opened \(.* surrogates"):
        read_checkpoint(tmp_path / "out")
    index[names[0]] = second.name
    write_index()
    with pytest.raises(BadCheckpoint, match=r"l\.safetensors holds weights .* place there"):
        read_checkpoint(tmp_path / "out")
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    weights = load_file(first)
    save_file({names[0]: weights.pop(names[0])} | frequencies, second)
    save_file(weights, first)
    read_checkpoint(tmp_path / "out")


def test_a_size_that_is_not_given_is_named(tokenizer_file, tmp_path):
    _damage(tmp_path, tokenizer_file, {}, remove="vocab_size")
    with pytest.raises(BadCheckpoint, match="vocab_size"):
        read_checkpoint(tmp_path / "out")


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("float32", np.nan, "down_proj.weight has 1 values that are NaN, infinite or above 1e.18"),
        ("float32", -1e25, "down_proj.weight has 1 values that are NaN, infinite or above 1e.18"),
        ("float32", -np.inf, "down_proj.weight has 1 values that are NaN, infinite or above 1e.18"),
        ("float64", 1e300, "down_proj.weight has 1 values that are NaN, infinite or above 1e.18"),
        ("float16", np.inf, "down_proj.weight has 1 values that are NaN, infinite or above 1e.18"),
        ("int8", 1, "is of type I8, where F64, F32, F16, BF16 can be read"),
        ("bool", 1, "is of type BOOL, where"),
        ("uint8", 1, "is of type F8_E4M3, where"),
    ],
)
def test_weights_that_no_model_can_have_are_named(tokenizer_file, tmp_path, dtype, value, said):
    _damage(tmp_path, tokenizer_file, {})
    file = tmp_path / "out" / "model.safetensors"
    weights, name = load_file(file), "model.layers.0.mlp.down_proj.weight"
    weights[name] = weights[name].astype(dtype)
    weights[name][0, 0] = value
    save_file(weights, file)
    if "F8" in said:  # NumPy has no such type. The header is longer by the letters of its name.
        content = file.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + size].replace(b'"U8"', b'"F8_E4M3"')
        file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    with pytest.raises(BadCheckpoint, match=said):
        read_checkpoint(tmp_path / "out")


def test_an_export_may_be_read_by_whom_the_umask_says(tokenizer_file, tmp_path):
    for umask, mode in ((0o027, 0o640), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(umask)
        try:
            out = tmp_path / oct(umask)
            export_checkpoint(TINY, lively(TINY), tokenizer_file, out)
        finally:
            os.umask(before)
        assert {file.stat().st_mode & 0o777 for file in out.iterdir()} == {mode}
        assert out.stat().st_mode & 0o777 == 0o777 & ~umask
    assert len(list(tmp_path.iterdir())) == 3


def test_a_truncated_or_absent_file_is_named(tokenizer_file, tmp_path):
    _damage(tmp_path, tokenizer_file, {})
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors cannot be opened"):
        read_checkpoint(tmp_path / "out")
    weights.unlink()
    with pytest.raises(BadCheckpoint, match=r"no model\.safetensors"):
        read_checkpoint(tmp_path / "out")
    os.mkfifo(weights)  # without a writer: a program that opens it waits for ever
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors' is no file"):
        read_checkpoint(tmp_path / "out")
    with pytest.raises(BadCheckpoint, match=r"no config\.json"):
        read_checkpoint(tmp_path)


def _damage(tmp_path, tokenizer_file, changes, remove=None):
    """An exported model whose config.json then says something else."""
    export_checkpoint(TINY, lively(TINY), tokenizer_file, tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    said = {**json.loads(file.read_text()), **changes}
    said.pop(remove, None)
    file.write_text(json.dumps(said))


def _make_theirs(transformers, kind):
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
        "initializer_range": 0.3,
    }
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    for layer in model.model.layers:
        layer.self_attn.q_norm.weight.data.uniform_(0.5, 1.5)
        layer.self_attn.k_norm.weight.data.uniform_(0.5, 1.5)
    return model
