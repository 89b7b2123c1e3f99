"""The ids of a model that are tokens: its tokenizer may have fewer, and gaps between them.

A row of the embedding whose id is no token was never trained, and has no text.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

WORD_BITS = 32  # ids in a word of a mask
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def ids_of(document: dict[str, Any]) -> frozenset[int]:
    """The ids of the tokens of a parsed tokenizer.json."""
    tokens = document["model"]["vocab"]
    ids = tokens.values() if isinstance(tokens, dict) else range(len(tokens))
    return frozenset(ids) | {token["id"] for token in document["added_tokens"]}


def add_missing(document: dict[str, Any], size: int) -> None:
    """Gives each id below `size` that is no token a special one, which no text contains."""
    tokens = document["model"]["vocab"]
    if isinstance(tokens, dict):  # `tokenizers` numbers added tokens after those, unless among them
        tokens.update({token["content"]: token["id"] for token in document["added_tokens"]})
    for token_id in sorted(frozenset(range(size)) - ids_of(document)):
        name = f"<|id {token_id} is no token of the tokenizer|>"
        if isinstance(tokens, dict):  # a list has no gaps, and added tokens come after it
            tokens[name] = token_id
        document["added_tokens"].append({"id": token_id, "content": name, "special": True, **FLAGS})


def mask_of(ids: Iterable[int], size: int) -> np.ndarray:
    """uint32 [words]: a bit for each of `size` ids, the first is the lowest. 1 for the given ids,
    and for bits beyond the ids.
    """
    num_words = -(-size // WORD_BITS)
    is_allowed = np.zeros(num_words * WORD_BITS, bool)
    is_allowed[list(ids)] = True
    is_allowed[size:] = True
    return np.packbits(is_allowed, bitorder="little").view("<u4").astype(np.uint32)
