"""Structured output: which tokens may come next in a text that a JSON schema describes.

The grammar is `llguidance`'s: it compiles a schema in about a millisecond and says in some tens of
microseconds which tokens keep a text valid, on the host. Where that is one token only, it is known
without asking the model. White space is left out where JSON does without.
"""

import collections
import functools
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dipaco.serving.errors import GrammarFailed, NoGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

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
    """uint32 [words]: bits, the lowest first, that are 1 for these ids and beyond `size`."""
    num_words = -(-size // WORD_BITS)
    is_allowed = np.zeros(num_words * WORD_BITS, bool)
    is_allowed[list(ids)] = True
    is_allowed[size:] = True
    return np.packbits(is_allowed, bitorder="little").view("<u4").astype(np.uint32)


ALL = np.uint32(0xFFFFFFFF)
# Schemas kept for later requests, and their bytes together at most. Most take 40 times their bytes
# when compiled, and small ones 30 to 130 KB. Some take up to 300 MB for a second of compiling.
RECENT, RECENT_BYTES, RECENT_SECONDS = 64, 1 << 20, 0.2
# The work of a grammar's masks stays in memory, and is limited: a few states of 0.5 KB for the
# mask of a string's pattern. After this many masks the next request has it compiled again.
MASKS = 10_000
# A text that reaches the limit beside others tries alone, in the loop, where compiling took no more
# processor time than this.
ALONE_SECONDS = 0.02
# Limits of `llguidance`, of which the first is an eighth of its own: the work of one mask, of up to
# 20 ms for a schema that is made to be slow. Usual masks take less than a quarter of that.
LIMITS: dict[str, Any] = {"step_lexer_fuel": 25_000}
# Tokens in a row that a text may begin with before any is drawn. A property's name takes ten.
MOST_FORCED = 2048
NO_TOKEN = "NoExtensionBias"  # llguidance's word: no token may come next, however it is compiled
ANY_OBJECT = json.dumps({"type": "object"})  # the schema of `json_object`


class GrammarVocabulary(NamedTuple):
    """The ids of a model, and the tokens that its tokenizer has for them. It can be pickled."""

    tokenizer: str  # JSON, as `tokenizers` writes it
    size: int  # token ids of the model
    end: int | None  # the token that ends a text

    def token_ids(self) -> frozenset[int]:
        """The ids that are tokens."""
        return ids_of(json.loads(self.tokenizer)) & frozenset(range(self.size))


def all_allowed(num_rows: int, vocab_size: int) -> np.ndarray:
    """uint32 [num_rows, words], a bit for each token, the first is the lowest: all are allowed."""
    return np.full((num_rows, -(-vocab_size // WORD_BITS)), ALL, np.uint32)


class Compiled:
    """A grammar, compiled once, with the states that the masks of its texts have needed."""

    def __init__(self, matcher: "LLMatcher", tokenizer: "LLTokenizer"):
        self._matcher, self._vocab_size = matcher, tokenizer.vocab_size
        self.num_masks = 0  # that were made of it
        self.is_full = False  # one of its texts has reached the limit of states

    @property
    def is_worn(self) -> bool:
        """The next request has it compiled again."""
        return self.is_full or self.num_masks >= MASKS

    def matcher(self, made_ids: Sequence[int] = ()) -> "LLMatcher":
        """A matcher after these tokens of a text. It may have an error.

        The masks between them are made again: each allows the work of one step. Tokens read without
        masks may use that up for good, for all texts of this grammar.
        """
        matcher = self._matcher.deep_copy()
        allowed_1W = all_allowed(1, self._vocab_size)
        for token in made_ids:
            if not matcher.is_stopped():
                _fill_mask(matcher, allowed_1W)
                self.num_masks += 1
                matcher.consume_token(token)
        return matcher


class Grammar:
    """A JSON schema, compiled. `problem` is why it cannot be used, or None."""

    latest: Compiled  # the last compiled form. It is there only without a problem

    def __init__(self, schema: str, tokenizer: "LLTokenizer", problem: str | None = None):
        self.schema, self._tokenizer = schema, tokenizer
        self._renewing = threading.Lock()
        started_seconds = time.thread_time()
        try:
            self.problem = problem
            if problem is None:
                self.latest = self.compiled()
                self.problem = self._problem_of_beginning()
        except (ValueError, RecursionError) as error:
            self.problem = str(error)
        if self.problem is not None:
            self.__dict__.pop("latest", None)  # may hold 60 MB
        self.compile_seconds = time.thread_time() - started_seconds  # of processor time

    def compiled(self) -> Compiled:
        """Compiles it, beside what there is already."""
        from llguidance import LLMatcher, LLParserLimits

        written = LLMatcher.grammar_from_json_schema(
            self.schema, overrides={"whitespace_flexible": False}
        )
        # Silent: else each text that fails would write a line to standard error.
        limits = LLParserLimits(**LIMITS)
        matcher = LLMatcher(self._tokenizer, written, log_level=0, limits=limits)
        return Compiled(matcher, self._tokenizer)

    def _problem_of_beginning(self) -> str | None:
        """The error of the first mask, for a schema that no text obeys, such as `{"$ref": "#"}`."""
        matcher = self.latest.matcher()
        if not matcher.is_error():
            forced = _forced(matcher, frozenset(self._tokenizer.eos_tokens))
            if len(forced) > MOST_FORCED:
                return f"each text begins with the same {len(forced)} tokens; at most {MOST_FORCED}"
            _fill_mask(matcher, all_allowed(1, self._tokenizer.vocab_size))
        return _problem_of(matcher)

    @property
    def is_ready(self) -> bool:
        """True if `renew` returns at once."""
        if self.problem is not None or not self.latest.is_worn:
            return True
        return self._renewing.locked() and not self.latest.is_full

    def renew(self) -> None:
        """Compiles it again if it is worn. Texts that have begun keep their form. Texts that begin
        meanwhile keep it too, unless it is full: then they wait.
        """
        if self.is_ready or not self._renewing.acquire(blocking=self.latest.is_full):
            return
        try:
            if self.latest.is_worn:
                self.latest = self.compiled()
        finally:
            self._renewing.release()


def _forced(matcher: "LLMatcher", ends: frozenset[int]) -> list[int]:
    """The next tokens, while no other is allowed. The matcher has then read them."""
    forced = []
    for token in matcher.compute_ff_tokens():
        if token in ends or not matcher.consume_token(token):
            break
        forced.append(token)
    return forced


def _fill_mask(matcher: "LLMatcher", allowed_1W: np.ndarray) -> None:
    """Puts in which tokens may come next, unless it has an error, or the text is over. With an
    error, also one that it has only now, the end alone may come.
    """
    from llguidance.numpy import fill_next_token_bitmask

    if not matcher.is_error() and not matcher.is_stopped():
        fill_next_token_bitmask(matcher, allowed_1W.view(np.int32))


def _may_do_alone(matcher: "LLMatcher") -> bool:
    """True if it has an error that other texts of this grammar may have caused."""
    return matcher.is_error() and not matcher.get_error().startswith(NO_TOKEN)


def _problem_of(matcher: "LLMatcher") -> str | None:
    if not matcher.is_error():
        return None
    problem, _, more = matcher.get_error().partition("\n")
    if (reason := more.rpartition("error: ")[2]) and problem.endswith(":"):
        # The reason of a regular expression's problem comes after a pointer.
        problem += f" {reason}"
    if problem == NO_TOKEN:
        return "no token may come next, as where a `$ref` leads back to itself"
    return problem


class Grammars:
    """Compiles grammars for one vocabulary. What a request refers to stays compiled, and so do the
    latest, since an application sends the same ones. Any thread may call it. `trial` gives the
    problem of a schema that nobody trusts, before it is compiled here.
    """

    def __init__(
        self, vocabulary: GrammarVocabulary, trial: Callable[[str], str | None] | None = None
    ):
        self.vocabulary, self._trial = vocabulary, trial
        self._lock, self._making_tokenizer = threading.Lock(), threading.Lock()
        self._live: weakref.WeakValueDictionary[str, Grammar] = weakref.WeakValueDictionary()
        self._recent: collections.OrderedDict[str, Grammar] = collections.OrderedDict()

    def compiled(self, schema: str) -> Grammar:
        """A JSON schema, which may have a problem. It takes a millisecond, a large one seconds.
        Raises `ImportError` without `llguidance`, and `NoGrammar`.
        """
        grammar = self._live_one(schema)
        grammar.renew()
        self._keep(schema, grammar)
        return grammar

    def ready(self, schema: str) -> Grammar | None:
        """The same if that takes no time. None = it has to be compiled."""
        with self._lock:
            grammar = self._live.get(schema)
        if grammar is None or not grammar.is_ready:
            return None
        self._keep(schema, grammar)
        return grammar

    def _keep(self, schema: str, grammar: Grammar) -> None:
        with self._lock:
            if len(schema) <= RECENT_BYTES:
                self._recent[schema] = grammar
                self._recent.move_to_end(schema)
            while len(self._recent) > 1 and self._keeps_too_much():
                self._recent.popitem(last=False)

    def _keeps_too_much(self) -> bool:
        num_bytes = sum(map(len, self._recent))
        usable = [grammar for grammar in self._recent.values() if grammar.problem is None]
        seconds = sum(grammar.compile_seconds for grammar in usable)
        return len(self._recent) > RECENT or num_bytes > RECENT_BYTES or seconds > RECENT_SECONDS

    def _live_one(self, schema: str) -> Grammar:
        with self._lock:
            grammar = self._live.get(schema)
        if grammar is None:
            tokenizer, problem = self.tokenizer, None
            if self._trial is not None and schema != ANY_OBJECT:
                problem = self._trial(schema)
            grammar = Grammar(schema, tokenizer, problem)
            with self._lock:  # two threads that bring the same schema both get the first
                grammar = self._live.setdefault(schema, grammar)
        return grammar

    def begin(
        self, schema: str, made_ids: Sequence[int], stop_ids: frozenset[int]
    ) -> "GrammarState":
        """The state of a text that has these tokens and may be ended by others. Compiles the schema
        if that is still to be done. Raises `GrammarFailed`.
        """
        grammar = self._live_one(schema)
        if grammar.problem is not None:
            raise GrammarFailed(problem=grammar.problem)
        return GrammarState(self, grammar, made_ids, stop_ids)

    @functools.cached_property
    def tokens_W(self) -> np.ndarray:
        """uint32 [words], as of `all_allowed`: the ids that are tokens."""
        return mask_of(self.vocabulary.token_ids(), self.vocabulary.size)

    @property
    def tokenizer(self) -> "LLTokenizer":
        """Made when it is first needed, in a tenth of a second or more. Raises `NoGrammar`."""
        with self._making_tokenizer:
            return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        text, size, end = self.vocabulary
        if end is None:  # an end beside the model's tokens: else token 0 would be taken for it
            size, end = size + 1, size
        document = json.loads(text)
        add_missing(document, size)  # `llguidance` takes the number of tokens for the number of ids
        slices = LLTokenizer.json_slices()
        try:
            return LLTokenizer(json.dumps(document), n_vocab=size, eos_token=end, slices=slices)
        except ValueError as error:
            raise NoGrammar(problem=str(error).partition("\n")[0][:200]) from error


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

    def __init__(
        self,
        grammars: Grammars,
        grammar: Grammar,
        made_ids: Sequence[int],
        stop_ids: frozenset[int],
    ):
        self._grammar, self._stop_ids = grammar, stop_ids
        self._compiled, self._is_alone = grammar.latest, False
        self._read_ids, self._matcher = [*made_ids], self._compiled.matcher(made_ids)
        self._all_ends = frozenset(grammars.tokenizer.eos_tokens)
        # The end token may come if the text may end. If it ends nothing, the text ends there.
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
        """The text has one token more. Raises `GrammarFailed`: its limits are outgrown."""
        if self.forced:
            expected = self.forced.popleft()
            assert token == expected, f"{token} is not the token {expected} that is forced"
        elif not self.is_over:
            self._read_ids.append(token)
            self._matcher.consume_token(token)
            self._look()

    def knows(self, token: int, mask_number: int) -> bool:
        """True if a token that was drawn from the mask of that number may be added."""
        if self.forced:
            return token == self.forced[0]
        return mask_number == self.mask_number

    @property
    def must_stop(self) -> bool:
        """True if only tokens that end the text may come after the forced ones."""
        allowed = np.flatnonzero(np.unpackbits(self.allowed_W.view(np.uint8), bitorder="little"))
        return self._stop_ids.issuperset(allowed.tolist())

    def _look(self) -> None:
        before_W = self.allowed_W.copy()
        self._read_on()
        if _may_do_alone(self._matcher):
            self._compiled.is_full = True
            if self._grammar.compile_seconds <= ALONE_SECONDS and not self._is_alone:
                self._go_on_alone()
        if problem := _problem_of(self._matcher):
            raise GrammarFailed(problem=problem)
        if self._matcher.is_stopped():
            self.is_over = True
            return
        for end in self._ends:
            self._allowed_1W[0, end // WORD_BITS] &= ~np.uint32(1 << end % WORD_BITS)
        self.is_over = not self.allowed_W.any()
        self.is_steady = np.array_equal(before_W, self.allowed_W)
        self.mask_number += not self.is_steady

    def _go_on_alone(self) -> None:
        """Continues with a grammar that no other text has."""
        problem = _problem_of(self._matcher)
        self._compiled, self._is_alone = self._grammar.compiled(), True
        self._matcher = self._compiled.matcher(self._read_ids)
        if self._matcher.is_error():
            assert problem is not None, "it is alone as its matcher had an error"
            raise GrammarFailed(problem=problem)
        self._read_on()

    def _read_on(self) -> None:
        forced = _forced(self._matcher, self._all_ends)
        self.forced += forced
        self._read_ids += forced
        _fill_mask(self._matcher, self._allowed_1W)
        self._compiled.num_masks += 1
