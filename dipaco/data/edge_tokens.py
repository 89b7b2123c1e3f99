"""The tokens at the edges of a text: one that starts it, and one that ends it.

A text ends with an end token, which a model learns to predict, so that it can stop; and begins with
a start token, so that a text can be continued from nothing and its first token has a probability.
Both are `<|endoftext|>` unless a given tokenizer has its own. They are added where rows are planned
(`pack.py`): the corpus holds text alone, and so no router reads them and no perplexity counts them.
A piece of a text that was cut has only the edges that are its own; of equal pieces only the first
is kept, with its edges.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from dipaco.data.config import EdgeNames, read_object, spelled
from dipaco.data.errors import BadTokenizer
from dipaco.data.tokenizer import Tokenizer


class EdgeTokens(NamedTuple):
    """The ids of the edge tokens; None = there is none."""

    start: int | None = None
    end: int | None = None

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens at which generation stops."""
        return frozenset() if self.end is None else frozenset({self.end})


class Edges(NamedTuple):
    """The edge tokens of a corpus, and which of its N documents have them."""

    tokens: EdgeTokens
    begins_N: np.ndarray  # bool: the document is the beginning of a text
    ends_N: np.ndarray  # bool: it is the end of one


def edge_tokens(tokenizer: Tokenizer, names: EdgeNames) -> EdgeTokens:
    """Raises `BadTokenizer` if a name is not one of the tokenizer's special tokens."""
    return EdgeTokens(*(_special_id(tokenizer, name) for name in names))


def edge_names_of(tokenizer: Tokenizer, tokens: EdgeTokens) -> EdgeNames:
    """How a tokenizer spells its edge tokens."""
    ids = tokens.start, tokens.end
    return EdgeNames(*(None if i is None else tokenizer.library.id_to_token(i) for i in ids))


def edge_names_of_checkpoint(folder: Path, tokenizer: Tokenizer) -> EdgeNames:
    """The start and end tokens of a Hugging Face checkpoint: of its tokenizer_config.json, else by
    id of its generation_config.json or config.json, the first where there are several. Without a
    start token, the end token starts a text, as with any other tokenizer.
    """
    named = read_object(folder / "tokenizer_config.json")
    by_ids = (read_object(folder / f"{name}.json") for name in ("config", "generation_config"))
    ids = {key: found for file in by_ids for key, found in file.items() if found is not None}

    def name_of(which: str) -> str | None:
        if f"{which}_token" in named:  # null says that there is none
            return spelled(named[f"{which}_token"])
        found = ids.get(f"{which}_token_id")
        found = found[0] if isinstance(found, list) and found else found
        is_id = isinstance(found, int) and not isinstance(found, bool) and found >= 0
        return tokenizer.library.id_to_token(found) if is_id else None

    end = name_of("eos")
    return EdgeNames(name_of("bos") or end, end)


def _special_id(tokenizer: Tokenizer, name: str | None) -> int | None:
    if name is None:
        return None
    special = {
        token.content: number
        for number, token in tokenizer.library.get_added_tokens_decoder().items()
        if token.special
    }
    if name not in special:
        raise BadTokenizer(
            file=tokenizer.file,
            problem=f"`{name}`, which is to end or to begin a text, is none of its special tokens "
            f"({', '.join(f'`{one}`' for one in sorted(special)[:5]) or 'it has none'})",
            advice="Name one of them by `data.end_token` (and `data.start_token`), or set "
            "`data.end_of_text=false`.",
        )
    return special[name]
