"""The sizes and switches in a `config.json` of Hugging Face `transformers`, checked.

It comes from elsewhere, and may hold anything: what would change the meaning of the weights is
refused, and so is a value of another type.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dipaco.errors import BadSetting
from dipaco.model.config import ModelConfig
from dipaco.model.errors import BadCheckpoint

# Values that `transformers` assumes for keys that an architecture's config.json omits.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"rms_norm_eps": 1e-6},
    "Qwen3ForCausalLM": {"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 32},
}
_ROPE = ("rope_parameters", "rope_scaling")  # keys of `transformers` 5, and of earlier versions
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_KINDS = {
    **dict.fromkeys(_SIZES, (int,)),
    **dict.fromkeys(("num_key_value_heads", "head_dim"), (int, type(None))),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), (int, float)),
    **dict.fromkeys(_ROPE, (dict, type(None))),
    "tie_word_embeddings": (bool,),
    "architectures": (list, type(None)),
    "layer_types": (list, type(None)),
}
_IN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def read_config(folder: Path, theirs: Mapping[str, Any], has_head: bool) -> ModelConfig:
    """The model that a checkpoint's `config.json` describes.

    Args:
      folder: the checkpoint's folder, for messages.
      theirs: the content of the file.
      has_head: True if the weights have a head. This decides if `tie_word_embeddings` is missing.

    Raises:
      BadCheckpoint: the architecture or an option is not supported, or a value is missing, of
        another type, or does not fit the others.
    """
    for problem in _mistyped(theirs):
        refuse(folder, f"config.json says {problem}")
    architecture = (theirs.get("architectures") or ["none"])[0]
    if not isinstance(architecture, str) or architecture not in _DEFAULTS:
        refuse(folder, f"its architecture is {architecture}")
    theirs = {**_DEFAULTS[architecture], **theirs}
    for problem in _unsupported(theirs):
        refuse(folder, f"config.json says {problem}")
    try:
        return ModelConfig(
            vocab_size=theirs["vocab_size"],
            d_model=theirs["hidden_size"],
            num_layers=theirs["num_hidden_layers"],
            num_heads=theirs["num_attention_heads"],
            num_kv_heads=theirs.get("num_key_value_heads"),
            head_dim=theirs.get("head_dim"),
            d_ff=theirs["intermediate_size"],
            max_length=theirs["max_position_embeddings"],
            rope_theta=float(next(iter(_rope_thetas(theirs)), 10_000.0)),
            norm_epsilon=float(theirs["rms_norm_eps"]),
            qk_norm=architecture == "Qwen3ForCausalLM",
            tied_head=theirs.get("tie_word_embeddings", not has_head),
        )
    except KeyError as error:
        refuse(folder, f"config.json does not give {error}")
    except BadSetting as error:
        refuse(folder, f"config.json does not fit together ({error})")


def _rope_thetas(theirs: Mapping[str, Any]) -> list[Any]:
    """All values that are given for it."""
    places = (theirs, *(theirs.get(name) or {} for name in _ROPE))
    return [place["rope_theta"] for place in places if "rope_theta" in place]


def _mistyped(theirs: Mapping[str, Any]) -> Iterator[str]:
    """Phrases about values of another type than `transformers` writes."""
    values = {name: theirs[name] for name in _KINDS if name in theirs}
    for name, value in values.items():
        if not _is_of(value, _KINDS[name]):
            yield _should_be(name, value)
    for theta in _rope_thetas(theirs):
        if not _is_of(theta, _KINDS["rope_theta"]):
            yield _should_be("rope_theta", theta)


def _is_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """`isinstance`, except that true and false are no numbers."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _should_be(name: str, value: Any) -> str:
    kinds = [kind for kind in _KINDS[name] if not (kind is int and float in _KINDS[name])]
    return f"`{name}` is {value!r}, and should be {' or '.join(_IN_WORDS[kind] for kind in kinds)}"


def _unsupported(theirs: Mapping[str, Any]) -> Iterator[str]:
    """Phrases about options that would change the meaning of the weights."""
    for switch in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config"):
        if theirs.get(switch):
            yield f"`{switch}` is on"
    for name in _ROPE:
        rope = theirs.get(name) or {}
        if any(isinstance(value, dict) for value in rope.values()):
            yield f"rotary positions differ layer by layer (`{name}`)"
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            yield f"rotary positions are scaled (`{kind}`)"
        if theirs.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
            yield "only a part of each head is rotated (`partial_rotary_factor`)"
    thetas = _rope_thetas(theirs)
    numbers = {"rope_theta": thetas, "rms_norm_eps": [theirs["rms_norm_eps"]]}
    for name, values in numbers.items():
        if not all(0 < value <= sys.float_info.max for value in values):
            yield f"`{name}` is no finite number above 0"
    if len(set(thetas)) > 1:
        yield f"`rope_theta` is given as {' and as '.join(map(str, thetas))}"
    if theirs.get("hidden_act", "silu") != "silu":
        yield f"`hidden_act` is {theirs['hidden_act']}"
    if any(kind != "full_attention" for kind in theirs.get("layer_types") or ()):
        yield "some layers attend through a window (`layer_types`)"


def refuse(folder: Path, problem: str) -> NoReturn:
    """Raises `BadCheckpoint`."""
    remedy = (
        "Expected a folder saved by `transformers` for LlamaForCausalLM or Qwen3ForCausalLM, "
        "without biases, scaled rotary positions, sliding windows or quantisation"
    )
    raise BadCheckpoint(folder=folder, problem=problem, remedy=f"{remedy}.")
