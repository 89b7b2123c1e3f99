"""Text <-> token ids, by a byte-level BPE trained here or any given tokenizer, and the two tokens
at the edges of a text.

A tokenizer is identified by its file's digest. One that is trained here is byte-level: any text can
be encoded and is decoded exactly. A given one may have a token for text that it cannot spell
(`unknown_id`). Notes on the corpus count these tokens. A given one without such a token may drop
text. Notes count the documents of which nothing is left. A special token never comes from text:
text that spells it is text. Special tokens that a given tokenizer would add by itself are left out.
Rows are filled up with id 0, which no tokenizer needs to reserve: the filling is masked by its
segment, 0, and never read.

A text ends with an end token, which a model learns to predict, so that it can stop. It begins with
a start token, so that a text can be continued from nothing and its first token has a probability.
Both are `<|endoftext|>` unless a given tokenizer has its own. They are added where rows are planned
(`pack.py`). The corpus holds text alone, so no router reads them and no perplexity counts them. A
piece of a text that was cut has only the edges that are its own. Of equal pieces only the first is
kept, with its edges.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dipaco.data.config import (
    END_OF_TEXT,
    CorpusConfig,
    EdgeNames,
    edge_names,
    read_object,
    spelled,
)
from dipaco.data.errors import BadTokenizer, HalfCharacter, half_in_words
from dipaco.errors import one_line
from dipaco.files import file_digest, write_whole

TEXTS_AT_ONCE = 64  # the library's encodings take about 100 bytes a token


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A `tokenizers.Tokenizer` and the file it came from."""

    file: Path
    library: Any

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: ids may have holes."""
        return 1 + max(self.library.get_vocab(with_added_tokens=True).values(), default=-1)

    @functools.cached_property
    def unknown_id(self) -> int | None:
        """The token that stands for text that it cannot spell. None = there is none."""
        model = json.loads(self.library.to_str())["model"]
        if model.get("unk_token") is not None:
            return self.library.token_to_id(model["unk_token"])
        return model.get("unk_id")

    @property
    def token_type(self) -> str:
        """The type of its ids on disk."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def digest(self) -> str:
        """xxh3 of tokenizer.json."""
        return file_digest(self.file)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Texts -> int32 ids, one array a text. Raises `HalfCharacter`."""
        encoded = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = list(texts[start : start + TEXTS_AT_ONCE])
            try:
                with _library_errors(self.file, "It must have its whole vocabulary."):
                    encodings = self.library.encode_batch_fast(some, add_special_tokens=False)
            except TypeError:
                _check_whole(some)
                raise
            for encoding in encodings:
                encoded.append(np.array(encoding.ids, dtype=np.int32))
        return encoded

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Ids -> text. Incomplete characters become U+FFFD."""
        return self.library.decode([int(i) for i in ids], skip_special_tokens=False)

    def num_bytes(self, ids: Sequence[int] | np.ndarray) -> int:
        """UTF-8 bytes of what they decode to. A piece of a character at an edge counts as one."""
        text = self.decode(ids)
        return len(text.encode()) - 2 * text.count("\ufffd")


@contextlib.contextmanager
def _library_errors(file: Path, advice: str) -> Generator[None]:
    """Raises `BadTokenizer` for what the library raises: plain `Exception`, or Rust's panic."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise BadTokenizer(file=file, problem=one_line(error), advice=advice) from error


def _check_whole(texts: Sequence[str]) -> None:
    """Raises `HalfCharacter`: Python's texts may hold halves of characters."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise HalfCharacter(half=half_in_words(error)) from None


def train_tokenizer(texts: Iterable[str], vocab_size: int, file: Path) -> Tokenizer:
    """Trains a byte-level BPE on a stream of texts and writes it as tokenizer.json.

    A small sample may give fewer than `vocab_size` tokens.
    """
    import tokenizers

    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer=trainer)
    write_whole(file, lambda stream: stream.write(library.to_str(pretty=True).encode()))
    return load_tokenizer(file)


def load_tokenizer(file: Path) -> Tokenizer:
    """Reads a tokenizer.json. Raises `BadTokenizer`: it is missing, or is not a tokenizer."""
    import tokenizers

    advice = "It must be a tokenizer.json of the Hugging Face `tokenizers` library."
    with _library_errors(file, advice):
        library = tokenizers.Tokenizer.from_file(str(file))
    if getattr(library.model, "dropout", None):
        library.model.dropout = None  # a text is the same tokens each time
    library.encode_special_tokens = True  # text that spells a special token is text
    library.no_truncation()
    library.no_padding()
    return Tokenizer(Path(file), library)


def given_tokenizer(file: Path | str, config: CorpusConfig) -> Tokenizer:
    """The tokenizer that the settings name.

    Raises:
      BadTokenizer: it cannot be read, has more tokens than the model, or no token for an edge of
        texts. One sentence says all of it.
    """
    tokenizer, problems, advice = load_tokenizer(Path(file)), [], []
    if tokenizer.vocab_size > config.vocab_size:
        highest = tokenizer.vocab_size - 1
        problems.append(f"its ids go up to {highest}, and the model has {config.vocab_size} ids")
        advice.append(f"Set `model.vocab_size={tokenizer.vocab_size}`.")
    try:
        edge_tokens(tokenizer, edge_names(config))
    except BadTokenizer as error:
        problems.append(str(error.values["problem"]))
        advice.append(str(error.values["advice"]))
    if problems:
        raise BadTokenizer(file=file, problem="; ".join(problems), advice=" ".join(advice))
    return tokenizer


class EdgeTokens(NamedTuple):
    """The ids of the edge tokens. None = there is none."""

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
    special = {
        token.content: number
        for number, token in tokenizer.library.get_added_tokens_decoder().items()
        if token.special
    }
    if absent := [f"`{name}`" for name in dict.fromkeys(names) if name and name not in special]:
        there = ", ".join(f"`{one}`" for one in sorted(special)[:5])
        raise BadTokenizer(
            file=tokenizer.file,
            problem=f"none of its special tokens is {' or '.join(absent)}, which is to begin or "
            f"to end a text ({f'they are {there}' if there else 'it has none'})",
            advice="Name one of them by `data.end_token` (and `data.start_token`), or set "
            "`data.end_of_text=false`.",
        )
    return EdgeTokens(*(None if name is None else special[name] for name in names))


def edge_names_of(tokenizer: Tokenizer, tokens: EdgeTokens) -> EdgeNames:
    """The spelling of a tokenizer's edge tokens."""
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
