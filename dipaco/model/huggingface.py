"""Checkpoints of Hugging Face `transformers`, written and read.

A model without QK-norm is a `LlamaForCausalLM`, one with it a `Qwen3ForCausalLM`. One table maps
our parameter names to theirs. Theirs are stored [out, in], ours [in, out]. Every size and switch is
written out: `transformers` silently fills in what `config.json` omits (a head of 128, a theta of
10,000), and a wrong theta still loads.
"""

import json
import math
import os
import shutil
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dipaco.errors import CheckpointExists, one_line
from dipaco.files import link, open_up
from dipaco.model.config import ComputeDtype, ModelConfig, block_names
from dipaco.model.config_json import read_config, refuse
from dipaco.model.errors import CheckpointIncomplete
from dipaco.model.spec import Parts, Tree, describe
from dipaco.trees import flatten, unflatten

FLOATS = ("F64", "F32", "F16", "BF16")
LARGEST_WEIGHT = 1e18  # The square of a larger one is near the end of float32.
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
# For models that know no roles: the messages are one text, and the answer goes on with it.
PLAIN_CHAT = """{{ messages | map(attribute="content") | join("\n") }}"""
CHECKPOINT_FILES = (
    "tokenizer.json",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
)

# Ours -> theirs, and whether theirs is transposed. `attention.query` stands for every block's.
_OUTSIDE = {
    "embed.table": ("model.embed_tokens.weight", False),
    "final_norm.scale": ("model.norm.weight", False),
    "head.kernel": ("lm_head.weight", True),
}
_IN_BLOCK = {
    "attention.norm": ("input_layernorm.weight", False),
    "attention.query": ("self_attn.q_proj.weight", True),
    "attention.key": ("self_attn.k_proj.weight", True),
    "attention.value": ("self_attn.v_proj.weight", True),
    "attention.output": ("self_attn.o_proj.weight", True),
    "attention.query_norm": ("self_attn.q_norm.weight", False),
    "attention.key_norm": ("self_attn.k_norm.weight", False),
    "feed_forward.norm": ("post_attention_layernorm.weight", False),
    "feed_forward.gate": ("mlp.gate_proj.weight", True),
    "feed_forward.up": ("mlp.up_proj.weight", True),
    "feed_forward.down": ("mlp.down_proj.weight", True),
}


def is_exported(folder: Path) -> bool:
    """True if an earlier export of this checkpoint is there.

    Raises:
      CheckpointIncomplete: files of it are missing.
    """
    if not folder.exists():
        return False
    is_split = (folder / WEIGHTS_INDEX).is_file()
    weights = sorted(set(_locate_weights(folder).values())) if is_split else [WEIGHTS]
    if lost := [name for name in (*weights, *CHECKPOINT_FILES) if not (folder / name).is_file()]:
        raise CheckpointIncomplete(folder=folder, lost=", ".join(lost))
    return True


class EdgeToken(NamedTuple):
    """A token that starts or ends a text."""

    id: int
    name: str


class WeightFile(NamedTuple):
    """A file for some parts of a path."""

    parts: frozenset[str]  # their names
    equal: Path | None = None  # the same file of another checkpoint, which is linked


def export_checkpoint(
    config: ModelConfig,
    parts: Parts,
    tokenizer_file: str | Path,
    folder: str | Path,
    *,
    start: EdgeToken | None = None,
    end: EdgeToken | None = None,
    dtype: ComputeDtype = "float32",
    files: Mapping[str, WeightFile] | None = None,
    chat: str | None = None,
    card: str | None = None,
) -> None:
    """Writes a folder for `from_pretrained` of `AutoModelForCausalLM` and `AutoTokenizer`.

    The folder appears whole or not at all: it is written under another name, and renamed.

    Args:
      parts: the parameters of one path, of all files that are not linked.
      tokenizer_file: a `tokenizer.json`, copied byte for byte.
      folder: must not exist yet.
      start: the token that texts began with, the `bos_token`.
      end: the token that texts ended with, the `eos_token`. Generation stops at it. It is the
        tokenizer's `pad_token` too, since padding in a batch is masked. config.json names no
        padding, since training would then leave that row of the embedding as it is.
      files: the files of weights by name, and an index names them. None = a single file.
      chat: the template of chats. None = the checkpoint takes none.
      card: the text of its README.md, if it has one.

    Raises:
      CheckpointExists: the folder is there already.
    """
    folder = Path(folder)
    if folder.exists():
        raise CheckpointExists(folder=folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        partial.mkdir()
        _write_weights(config, parts, dtype, partial, files)
        shutil.copyfile(tokenizer_file, partial / "tokenizer.json")
        # Null rather than absent: the defaults, 1 and 2, are ordinary tokens here.
        edges = {"bos": start, "eos": end, "pad": end}
        ids = {f"{name}_token_id": token and token.id for name, token in edges.items()}
        names = {f"{name}_token": token.name for name, token in edges.items() if token}
        _write_json(
            partial / "config.json", _model_json(config, dtype) | ids | {"pad_token_id": None}
        )
        _write_json(partial / "generation_config.json", ids)
        names |= {"chat_template": chat} if chat else {}
        _write_json(partial / "tokenizer_config.json", _tokenizer_json(config) | names)
        if card is not None:
            (partial / "README.md").write_text(card, encoding="utf-8")
        os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_checkpoint(folder: str | Path) -> tuple[ModelConfig, dict[str, Tree]]:
    """The model in a `transformers` folder of the Llama or Qwen3 architecture.

    One safetensors file or several with an index. Weights of `FLOATS`, returned as float32.

    Raises:
      BadCheckpoint: files are missing, the architecture or an option is not supported, the weights
        do not match config.json, or they are no finite numbers.
    """
    folder = Path(folder)
    theirs = _read_json(folder, "config.json")
    where = _locate_weights(folder)
    config = read_config(folder, theirs, has_head="lm_head.weight" in where)

    names = _names(config)
    expected = {their_name for their_name, _ in names.values()}
    unknown = sorted(where.keys() - expected - _ignored(config, where))
    missing = sorted(expected - where.keys())
    if missing or unknown:
        refuse(folder, f"weights missing: {_few(missing)}; not understood: {_few(unknown)}")
    return config, _read_parts(folder, config, where)


def _ignored(config: ModelConfig, names: Collection[str]) -> set[str]:
    """A tied checkpoint may hold its head as well. Older ones hold their rotary frequencies."""
    head = {"lm_head.weight"} if config.tied_head else set()
    return head | {name for name in names if name.endswith("rotary_emb.inv_freq")}


def _names(config: ModelConfig) -> dict[str, tuple[str, bool]]:
    """`block_03.attention.query` -> (`model.layers.3.self_attn.q_proj.weight`, transposed)."""
    blocks = {name: index for index, name in enumerate(block_names(config))}
    names = {}
    for path, _ in flatten(describe(config)):
        part, rest = path.split(".", 1)
        if part in blocks:
            their_name, is_transposed = _IN_BLOCK[rest]
            names[path] = (f"model.layers.{blocks[part]}.{their_name}", is_transposed)
        else:
            names[path] = _OUTSIDE[path]
    return names


def _write_weights(
    config: ModelConfig,
    parts: Parts,
    dtype: ComputeDtype,
    folder: Path,
    files: Mapping[str, WeightFile] | None,
) -> None:
    from safetensors.numpy import save_file

    specs, index = dict(flatten(describe(config))), {}
    for file, (names, equal) in (files or {WEIGHTS: WeightFile(frozenset(parts))}).items():
        if equal is not None:
            link(equal, folder / file)
        else:
            some = {name: parts[name] for name in names}
            save_file(to_theirs(config, some, dtype), folder / file, metadata={"format": "pt"})
            open_up(folder / file)
        for path, (their_name, _) in _names(config).items():
            if path.partition(".")[0] in names:
                index[their_name] = file
    if files is not None:
        values = sum(math.prod(spec.shape) for spec in specs.values())
        sizes = {"total_size": values * jnp.dtype(dtype).itemsize}
        _write_json(folder / WEIGHTS_INDEX, {"metadata": sizes, "weight_map": index})


def to_theirs(
    config: ModelConfig, parts: Parts, dtype: ComputeDtype = "float32"
) -> dict[str, np.ndarray]:
    """The weights of some parts by the names that `transformers` has for them."""
    theirs, names = {}, _names(config)
    for path, value in flatten(parts):
        their_name, is_transposed = names[path]
        value = np.asarray(value, np.float32).astype(jnp.dtype(dtype))
        # safetensors writes the underlying memory, which a transposed view does not change.
        theirs[their_name] = np.ascontiguousarray(value.T if is_transposed else value)
    return theirs


def _model_json(config: ModelConfig, dtype: ComputeDtype) -> dict[str, Any]:
    qwen3 = {"use_sliding_window": False, "sliding_window": None} if config.qk_norm else {}
    return {
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if config.qk_norm else "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,  # `transformers` 4 reads it here
        "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_head,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "dtype": dtype,
        **qwen3,
    }


def _tokenizer_json(config: ModelConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "clean_up_tokenization_spaces": False,  # decoded text must be the text
    }


def _locate_weights(folder: Path) -> dict[str, str]:
    """Name of each weight -> its file."""
    if (folder / WEIGHTS_INDEX).exists():
        where = _read_json(folder, WEIGHTS_INDEX).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
            refuse(folder, f"{WEIGHTS_INDEX} names no file for each weight")
        return where
    if not (folder / WEIGHTS).exists():
        refuse(folder, f"there is no {WEIGHTS} (nor its index) in it")
    return dict.fromkeys(_open(folder, WEIGHTS)[0], WEIGHTS)


def _read_parts(folder: Path, config: ModelConfig, where: Mapping[str, str]) -> dict[str, Tree]:
    opened = {file: _open(folder, file) for file in sorted(set(where.values()))}
    for file, (tensors, _) in opened.items():
        strays = sorted(
            name for name in tensors - _ignored(config, tensors) if where.get(name) != file
        )
        if strays:
            refuse(
                folder,
                f"{file} holds weights that {WEIGHTS_INDEX} does not place there: {_few(strays)}",
            )
    specs = dict(flatten(describe(config)))
    leaves = {}
    for path, (their_name, is_transposed) in _names(config).items():
        tensors, read = opened[where[their_name]]
        if their_name not in tensors:
            refuse(folder, f"{where[their_name]} does not hold {their_name}, as its index says")
        value = read(their_name)
        value = np.ascontiguousarray(value.T if is_transposed else value)
        if value.shape != specs[path].shape:
            refuse(folder, f"{their_name} has another shape than config.json gives")
        if num_bad := value.size - int((np.abs(value) <= LARGEST_WEIGHT).sum()):
            bad = f"NaN, infinite or above {LARGEST_WEIGHT:g}"
            refuse(folder, f"{their_name} has {num_bad:,} values that are {bad}")
        leaves[path] = value
    return unflatten(leaves)


def _open(folder: Path, file: str):
    """The names in a safetensors file, and a function name -> float32 array. The function refuses
    weights of other types: whole numbers are scaled in ways that no file says.
    """
    import safetensors

    _refuse_special(folder, file)
    try:
        opened = safetensors.safe_open(folder / file, framework="flax")
        names = set(opened.keys())
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        refuse(folder, f"{file} cannot be opened ({one_line(error)})")

    def read(name: str) -> np.ndarray:
        if (dtype := opened.get_slice(name).get_dtype()) not in FLOATS:
            refuse(folder, f"{name} is of type {dtype}, where {', '.join(FLOATS)} can be read")
        with np.errstate(over="ignore"):  # too large a value becomes infinite, and is refused
            # Through JAX, since NumPy has no bfloat16.
            return np.asarray(opened.get_tensor(name)).astype(np.float32)

    return names, read


def _read_json(folder: Path, file: str) -> dict[str, Any]:
    _refuse_special(folder, file)
    try:
        values = json.loads((folder / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        refuse(folder, f"there is no {file} in it")
    except (OSError, ValueError, RecursionError) as error:
        refuse(folder, f"{file} cannot be read ({one_line(error)})")
    if not isinstance(values, dict):
        refuse(folder, f"{file} is no JSON object")
    return values


def _refuse_special(folder: Path, file: str) -> None:
    """A pipe or a device would be read for ever."""
    if os.path.exists(folder / file) and not os.path.isfile(folder / file):
        refuse(folder, f"{file!r} is no file")


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
