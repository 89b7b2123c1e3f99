"""Text <-> token ids: a byte-level BPE that is trained here, or any given tokenizer, identified by
its file's digest.

One that is trained here is byte-level: any text can be encoded and is decoded exactly. A given one
may have a token for what it cannot spell (`unknown_id`); how many there are is said when the text
is prepared. One that has none may drop such text: documents of which nothing is left are counted. A
special token never comes from text: text that spells it is text. Id 0 of a tokenizer trained here
is `<|endoftext|>`, the end of a text (`edge_tokens.py`). Rows are filled up with id 0 too, which no
tokenizer needs to reserve: what fills a row is masked by its segment, 0, and never read. Special
tokens that a given tokenizer would add by itself are left out.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.data.config import END_OF_TEXT
from dipaco.data.errors import BadTokenizer, HalfCharacter, half_in_words
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
        """The token that stands for text that it cannot spell; None = there is none."""
        model = json.loads(self.library.to_str())["model"]
        if model.get("unk_token") is not None:
            return self.library.token_to_id(model["unk_token"])
        return model.get("unk_id")

    @property
    def token_type(self) -> str:
        """Of its ids on disk."""
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
                encodings = self.library.encode_batch_fast(some, add_special_tokens=False)
            except TypeError:
                _check_whole(some)
                raise
            for encoding in encodings:
                encoded.append(np.array(encoding.ids, dtype=np.int32))
        return encoded

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Ids -> text; incomplete characters become U+FFFD."""
        return self.library.decode([int(i) for i in ids], skip_special_tokens=False)


def _check_whole(texts: Sequence[str]) -> None:
    """Raises `HalfCharacter`: Python's texts may hold what is no character."""
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


def load_tokenizer(file: Path, max_vocab_size: int | None = None) -> Tokenizer:
    """Reads a tokenizer.json.

    Raises:
      BadTokenizer: the file is missing, is not a tokenizer, or has more tokens than the model.
    """
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        advice = "It must be a tokenizer.json of the Hugging Face `tokenizers` library."
        raise BadTokenizer(file=file, problem=str(error), advice=advice) from error
    library.encode_special_tokens = True  # text that spells a special token is text
    library.no_truncation()
    library.no_padding()
    tokenizer = Tokenizer(Path(file), library)
    if max_vocab_size is not None and tokenizer.vocab_size > max_vocab_size:
        raise BadTokenizer(
            file=file,
            problem=f"its ids go up to {tokenizer.vocab_size - 1}, "
            f"and the model has {max_vocab_size} ids",
            advice="Raise `data.vocab_size` (and the model's).",
        )
    return tokenizer
