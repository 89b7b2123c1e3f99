"""Checkpoints as GGUF, the format of llama.cpp: weights, sizes and tokenizer in one file.

The package `gguf` writes it and knows the names of weights. As llama.cpp's own converter does,
vectors stay float32, and the queries and keys of a Llama are reordered for its kind of rotary
positions. llama.cpp splits a text by rules that it knows by a name. Of tokenizers, only those that
are trained here have one that can be told from the file: GPT-2's.
"""

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.errors import CheckpointExists, needs_extra
from dipaco.files import open_up
from dipaco.model.config import ComputeDtype, ModelConfig
from dipaco.model.errors import NoGguf
from dipaco.model.huggingface import EdgeToken, to_theirs
from dipaco.model.spec import Parts

PADDING = "[PAD{id}]"  # llama.cpp's name for an id of the model that no token has


def export_gguf(
    config: ModelConfig,
    parts: Parts,
    tokenizer_file: str | Path,
    file: Path,
    *,
    start: EdgeToken | None = None,
    end: EdgeToken | None = None,
    dtype: ComputeDtype = "float32",
    chat: str | None = None,
) -> None:
    """Writes a file for `llama-server --model`, whole or not at all.

    Raises:
      CheckpointExists: the file is there already.
      NoGguf: the tokenizer is of a kind that cannot be written.
    """
    with needs_extra("gguf", package="gguf", feature="`--gguf`"):
        import gguf

    if file.exists():
        raise CheckpointExists(folder=file)
    architecture = gguf.MODEL_ARCH.QWEN3 if config.qk_norm else gguf.MODEL_ARCH.LLAMA
    partial = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    writer = gguf.GGUFWriter(partial, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(file.stem)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    is_half = dtype == "bfloat16"
    kinds = gguf.LlamaFileType
    writer.add_file_type(kinds.MOSTLY_BF16 if is_half else kinds.ALL_F32)
    _add_tokenizer(gguf, writer, config, Path(tokenizer_file))
    for edge, add in ((start, writer.add_bos_token_id), (end, writer.add_eos_token_id)):
        if edge is not None:
            add(edge.id)
    writer.add_add_bos_token(False)
    if chat:
        writer.add_chat_template(chat)

    names = gguf.get_tensor_name_map(architecture, config.num_layers)
    for their_name, value in to_theirs(config, parts).items():
        for which, heads in (("q_proj", config.num_heads), ("k_proj", config.kv_heads)):
            if which in their_name and not config.qk_norm:
                value = _reordered(value, heads)
        name = names.get_name(their_name, try_suffixes=(".weight",))
        assert name is not None
        if is_half and value.ndim > 1:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, value)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        open_up(partial)
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


def _add_tokenizer(gguf: Any, writer: Any, config: ModelConfig, file: Path) -> None:
    """Raises `NoGguf`."""
    content = json.loads(file.read_text(encoding="utf-8"))
    model, splits = content["model"], content["pre_tokenizer"] or {}
    is_known = splits.get("type") == "ByteLevel" and splits.get("use_regex", True)
    if (
        model["type"] != "BPE"
        or not is_known
        or splits["add_prefix_space"]
        or content["normalizer"]
    ):
        raise NoGguf(kind=f"{model['type']} after {splits.get('type')}")
    special = {token["id"]: token["content"] for token in content["added_tokens"]}
    token_of = {number: token for token, number in model["vocab"].items()} | special
    kinds = gguf.TokenType
    ids = range(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token_of.get(number, PADDING.format(id=number)) for number in ids])
    writer.add_token_types(
        [
            kinds.CONTROL
            if number in special
            else kinds.NORMAL
            if number in token_of
            else kinds.UNUSED
            for number in ids
        ]
    )
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    writer.add_token_merges(list(merges))


def _reordered(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key kernel: the halves of a head, which rotate together, interleaved."""
    halves = value.reshape(heads, 2, -1, value.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))
