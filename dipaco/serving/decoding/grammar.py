"""Structured output: which tokens may come next in a text that a JSON schema describes.

The grammar is `llguidance`'s: it compiles a schema in about a millisecond and says in some tens of
microseconds which tokens keep a text valid, on the host. Where that is one token only, it is known
without asking the model. White space is left out where JSON does without.
"""

import collections
import functools
import json
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dipaco.serving.decoding.token_ids import WORD_BITS, add_missing, ids_of, mask_of
from dipaco.serving.errors import GrammarFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

ALL = np.uint32(0xFFFFFFFF)
# Schemas kept for later requests; compiled, one takes 40 times its bytes, and a small one 30 to
# 130 KB.
RECENT, RECENT_BYTES = 64, 1 << 20
ANY_OBJECT = json.dumps({"type": "object"})  # the schema of `json_object`


class GrammarVocabulary(NamedTuple):
    """The ids of a model, and the tokens that its tokenizer has for them; can be pickled."""

    tokenizer: str  # JSON, as `tokenizers` writes it
    size: int  # token ids of the model
    end: int | None  # the token that ends a text

    def token_ids(self) -> frozenset[int]:
        """The ids that are tokens."""
        return ids_of(json.loads(self.tokenizer)) & frozenset(range(self.size))


def all_allowed(num_rows: int, vocab_size: int) -> np.ndarray:
    """uint32 [num_rows, words], a bit for each token, the first is the lowest: all are allowed."""
    return np.full((num_rows, -(-vocab_size // WORD_BITS)), ALL, np.uint32)


class Grammar:
    """A JSON schema, compiled.

    Attributes:
      problem: why it cannot be used; None = it can.
    """

    def __init__(self, schema: str, tokenizer: "LLTokenizer"):
        from llguidance import LLMatcher

        self.schema = schema
        try:
            written = LLMatcher.grammar_from_json_schema(
                schema, overrides={"whitespace_flexible": False}
            )
            self._matcher = LLMatcher(tokenizer, written)
            self.problem = self._matcher.get_error() or None
        except ValueError as error:
            self.problem = str(error)

    def matcher(self) -> "LLMatcher":
        """At the beginning of a text; only without a problem."""
        return self._matcher.deep_copy()


class Grammars:
    """Compiles grammars for one vocabulary. What a request refers to is not compiled again, nor are
    the latest, since an application sends the same ones. Any thread may call it.
    """

    def __init__(self, vocabulary: GrammarVocabulary):
        self.vocabulary = vocabulary
        self._lock, self._making_tokenizer = threading.Lock(), threading.Lock()
        self._live: weakref.WeakValueDictionary[str, Grammar] = weakref.WeakValueDictionary()
        self._recent: collections.OrderedDict[str, Grammar] = collections.OrderedDict()

    def compiled(self, schema: str) -> Grammar:
        """A JSON schema, which may have a problem; a large one takes tenths of a second.

        Raises:
          ImportError: `llguidance` is not installed.
        """
        grammar = self._live_one(schema)
        with self._lock:
            if len(schema) <= RECENT_BYTES:
                self._recent[schema] = grammar
                self._recent.move_to_end(schema)
            while len(self._recent) > RECENT or sum(map(len, self._recent)) > RECENT_BYTES:
                self._recent.popitem(last=False)
        return grammar

    def _live_one(self, schema: str) -> Grammar:
        with self._lock:
            grammar = self._live.get(schema)
        if grammar is None:
            grammar = Grammar(schema, self.tokenizer)
            with self._lock:  # of two threads that bring the same, both get the first
                grammar = self._live.setdefault(schema, grammar)
        return grammar

    def begin(
        self, schema: str, made_ids: Sequence[int], stop_ids: frozenset[int]
    ) -> "GrammarState":
        """The state of a text that may have begun.

        Args:
          schema: JSON, without a problem; compiled already, or it takes as long as `compiled`.
          made_ids: its tokens so far.
          stop_ids: tokens that end it.

        Raises:
          GrammarFailed: as `GrammarState.add`.
        """
        matcher = self._live_one(schema).matcher()
        for token in made_ids:
            if not matcher.is_stopped():
                matcher.consume_token(token)
        return GrammarState(self, matcher, stop_ids)

    @functools.cached_property
    def tokens_W(self) -> np.ndarray:
        """uint32 [words], as of `all_allowed`: the ids that are tokens."""
        return mask_of(self.vocabulary.token_ids(), self.vocabulary.size)

    @property
    def tokenizer(self) -> "LLTokenizer":
        """Made when it is first needed: that takes a tenth of a second or more."""
        with self._making_tokenizer:
            return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        text, size, end = self.vocabulary
        if end is None:  # an end beside the model's tokens: else token 0 would be taken for it
            size, end = size + 1, size
        document = json.loads(text)
        add_missing(document, size)  # it takes the number of tokens for that of ids
        return LLTokenizer(
            json.dumps(document), n_vocab=size, eos_token=end, slices=LLTokenizer.json_slices()
        )


class GrammarState:
    """A text in its grammar, and the tokens that may come next.

    Attributes:
      forced: the next tokens: in the place of each, no other is allowed.
      allowed_W: uint32 [words], as of `all_allowed`: what may come after those.
      mask_number: of `allowed_W`: another one has another number.
      is_steady: the last token that was drawn left `allowed_W` as it was. So the next one may, too:
        within a string, most do.
      is_over: nothing may come after those.
    """

    def __init__(self, grammars: Grammars, matcher: "LLMatcher", stop_ids: frozenset[int]):
        self._matcher, self._stop_ids = matcher, stop_ids
        self._all_ends = frozenset(grammars.tokenizer.eos_tokens)
        # Where the text may end, the end token may come; if it ends nothing, the text ends there.
        self._ends = self._all_ends - stop_ids
        self._allowed_1W = all_allowed(1, grammars.tokenizer.vocab_size)
        self.allowed_W = self._allowed_1W[0, : -(-grammars.vocabulary.size // WORD_BITS)]
        self.forced: collections.deque[int] = collections.deque()
        self.mask_number = 0
        self.is_steady = self.is_over = False
        self._look()

    @property
    def is_complete(self) -> bool:
        """Nothing may come: the text is valid, and over."""
        return self.is_over and not self.forced

    def add(self, token: int) -> None:
        """The text has this token more, one that may come.

        Raises:
          GrammarFailed: the grammar has outgrown its limits.
        """
        if self.forced:
            expected = self.forced.popleft()
            assert token == expected, f"{token} is not the token {expected} that is forced"
        elif not self.is_over:
            self._matcher.consume_token(token)
            self._look()

    def knows(self, token: int, mask_number: int) -> bool:
        """Whether a token that was drawn from the mask of that number may be added: it is the one
        that is forced, or the mask is still that one.
        """
        if self.forced:
            return token == self.forced[0]
        return mask_number == self.mask_number

    @property
    def must_stop(self) -> bool:
        """Whether only tokens that end the text may come after the forced ones."""
        allowed = np.flatnonzero(np.unpackbits(self.allowed_W.view(np.uint8), bitorder="little"))
        return self._stop_ids.issuperset(allowed.tolist())

    def _look(self) -> None:
        from llguidance.numpy import fill_next_token_bitmask

        before_W = self.allowed_W.copy()
        for token in self._matcher.compute_ff_tokens():
            if token in self._all_ends or not self._matcher.consume_token(token):
                break
            self.forced.append(token)
        if not self._matcher.is_error() and not self._matcher.is_stopped():
            fill_next_token_bitmask(self._matcher, self._allowed_1W.view(np.int32))
            for end in self._ends:
                self._allowed_1W[0, end // WORD_BITS] &= ~np.uint32(1 << end % WORD_BITS)
            self.is_over = not self.allowed_W.any()
            self.is_steady = np.array_equal(before_W, self.allowed_W)
            self.mask_number += not self.is_steady
        elif self._matcher.is_error():
            raise GrammarFailed(problem=self._matcher.get_error().partition("\n")[0])
        else:
            self.is_over = True
