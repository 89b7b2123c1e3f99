"""Structured output without a server: forced tokens, and texts that do not depend on the steps."""

import contextlib
import gc
import json
import subprocess
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="structured output needs the `serve` extra")

from llguidance.numpy import fill_next_token_bitmask
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dipaco.serving import fairness
from dipaco.serving.decoding import grammar, grammar_trial
from dipaco.serving.decoding.batch import plan_block
from dipaco.serving.decoding.decode import DRAWN, RESTS, LoopLimits
from dipaco.serving.decoding.grammar import Grammars, GrammarVocabulary, all_allowed
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.errors import GrammarFailed, NoGrammar
from dipaco.serving.http.errors import api_error_of
from tests.support.serving_rig import (
    CONFIG,
    ForcedTokens,
    byte_level,
    object_of,
    one_by_one,
    prepared,
    read,
    request,
    run_until_idle,
)

SCHEMA = json.dumps(object_of(name={"type": "string", "pattern": "^[a-d]{2,4}$"}, on={"const": 17}))


def tokens_of(mask_W):
    """Those that a mask allows."""
    return np.flatnonzero(np.unpackbits(mask_W.view(np.uint8), bitorder="little"))


def test_a_forced_token_is_the_only_one_that_the_grammar_allows(grammars):
    rng, num_forced = np.random.default_rng(0), 0
    for _ in range(10):
        state, tokens = grammars.begin(SCHEMA, [], frozenset()), []
        matcher = grammars.compiled(SCHEMA).latest.matcher()
        while not state.is_complete:
            allowed_1W = all_allowed(1, grammars.tokenizer.vocab_size)
            fill_next_token_bitmask(matcher, allowed_1W.view(np.int32))
            allowed = tokens_of(allowed_1W)
            if state.forced:
                num_forced += 1
                assert allowed.tolist() == [state.forced[0]]
            else:
                own, size = tokens_of(state.allowed_W), grammars.vocabulary.size
                assert own[own < size].tolist() == allowed[allowed < size].tolist()
            token = state.forced[0] if state.forced else int(rng.choice(allowed))
            tokens.append(token)
            state.add(token)
            matcher.consume_token(token)
        found = json.loads(grammars.text(tokens))
        assert found["on"] == 17
    assert num_forced > 100


def unigram():
    """A list of tokens with scores, with one for each byte."""
    tokens = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    tokens += [(letter, -1.0) for letter in 'ab"\u2581']
    tokenizer = Tokenizer(models.Unigram(tokens, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    spaces = decoders.Replace("\u2581", " ")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, unigram])
@pytest.mark.parametrize("has_end", [True, False])
@pytest.mark.parametrize("num_missing", [0, 41])
def test_added_tokens_keep_their_ids_in_a_model_that_has_more_ids_than_tokens(
    make, has_end, num_missing
):
    tokenizer = make()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["    ", "yes yes"])
    end, spaces = map(tokenizer.token_to_id, ("<|end|>", "    "))
    size = tokenizer.get_vocab_size() + num_missing
    grammars = Grammars(GrammarVocabulary(tokenizer.to_str(), size, end if has_end else None))
    for added in ("<|end|>", "    ", "yes yes"):
        token = tokenizer.token_to_id(added)
        assert grammars.tokenizer.decode_bytes([token]).decode() == added
        assert grammars.tokenizer.is_special_token(token) == (token == end)
    for missing in range(size - num_missing, size):
        assert grammars.tokenizer.is_special_token(missing)
    forced = grammars.begin('{"enum": ["a    b"]}', [], frozenset({end})).forced
    assert spaces in forced
    assert tokenizer.decode(list(forced)) == '"a    b"'


def test_without_an_end_token_the_first_token_is_one_like_any_other():
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    grammars = Grammars(GrammarVocabulary(tokenizer.to_str(), size, None))
    state = grammars.begin('{"enum": ["!"]}', [], frozenset())
    assert tokenizer.token_to_id("!") == 0
    for character in '"!"':
        token = tokenizer.token_to_id(character)
        assert not state.is_complete
        assert state.forced[0] == token
        state.add(token)
    assert state.is_complete


def words():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "{": 1, "}": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def words_with_ends():
    tokenizer = Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


@pytest.mark.parametrize("make", [words, words_with_ends])
def test_a_tokenizer_that_has_no_bytes_has_no_structured_output(make):
    tokenizer = make()
    grammars = Grammars(GrammarVocabulary(tokenizer.to_str(), tokenizer.get_vocab_size(), None))
    for _ in range(2):
        with pytest.raises(NoGrammar, match=r"has no structured output: .*decoder") as raised:
            grammars.compiled('{"type": "object"}')
        answer = api_error_of(raised.value)
        assert (answer.status, answer.detail.param) == (400, "response_format")


def test_a_block_has_as_many_steps_as_give_the_most_tokens_for_the_time():
    alone = plan_block([ForcedTokens(3)], 2, 8)
    assert alone.num_steps == 4
    assert alone.given_nB[:, 0].tolist() == [0, 1, 2, *[DRAWN] * 5]
    assert (alone.given_nB[:, 1] == RESTS).all()  # padding
    over = plan_block([ForcedTokens(2, is_over=True)], 1, 8)
    assert over.num_tokens == [2]
    assert over.given_nB[:, 0].tolist() == [0, 1, *[RESTS] * 6]
    assert plan_block([ForcedTokens(20)], 1, 8).num_tokens == [8]
    assert plan_block([None, None], 4, 8)[1:] == (8, [8, 8])
    # For a row whose mask stays as it is there are steps to draw ahead.
    assert plan_block([ForcedTokens(0, is_steady=True)], 1, 8)[1:] == (8, [8])
    assert plan_block([ForcedTokens(0)], 1, 8)[1:] == (1, [1])
    assert plan_block([ForcedTokens(2, is_steady=True)], 1, 8)[1:] == (3, [3])
    # For one long run, seven others would rest.
    many = plan_block([ForcedTokens(6), *[ForcedTokens(0)] * 15], 16, 8)
    assert (many.num_steps, many.num_tokens) == (1, [1] * 16)


def make_loop(grammars, steps):
    limits = LoopLimits(
        rows=6, rows_per_path=4, steps_per_block=steps, smallest_slots=64, rows_per_step=(4,)
    )
    return Loop(
        CONFIG, lambda *_: contextlib.nullcontext(prepared(0)), limits=limits, grammars=grammars
    )


def drawn_by(loop, schemas, max_new_tokens=40, **more):
    """A text of each schema as tokens and end, and how many blocks they took."""
    warm = SamplingSettings(temperature=1.0)
    given = {"max_new_tokens": max_new_tokens, "sampling": warm}
    streams = [
        loop.submit(request(**given | {"schema": each, "seed": seed} | more))
        for seed, each in enumerate(schemas)
    ]
    blocks = 0
    while loop.run_once():
        blocks += 1
    return [read(stream) for stream in streams], blocks


def next_turn(loop, text):
    """The tokens after a text, which is then in the prompt."""
    return one_by_one(loop, [request((5, 9, 2, *text, 7), max_new_tokens=8)])


def assert_same_in_steps_of_one_token(grammars, schemas, max_new_tokens, num_reused):
    """Asks for a text of each schema, drawn in blocks of one step and of eight. Returns the texts,
    and how many blocks either took.
    """
    texts, logprobs, blocks, later = {}, {}, {}, {}
    for steps in (1, 8):
        loop = make_loop(grammars, steps)
        made, blocks[steps] = drawn_by(loop, schemas, max_new_tokens, num_logprobs=1)
        texts[steps] = [[token.id for token in tokens] for tokens, _ in made]
        logprobs[steps] = [token.logprob for tokens, _ in made for token in tokens]
        # It goes on from what a row that rested has left in the cache.
        later[steps] = next_turn(loop, texts[steps][2])
        assert loop.stats().num_prompts_reused == num_reused
    assert texts[1] == texts[8]
    assert later[1] == later[8]
    np.testing.assert_allclose(logprobs[1], logprobs[8], atol=1e-5)
    return texts[8], blocks


def test_texts_are_the_same_in_steps_of_one_token_and_take_fewer_blocks(grammars):
    texts, blocks = assert_same_in_steps_of_one_token(
        grammars, (SCHEMA, None, SCHEMA, SCHEMA), 40, num_reused=4
    )  # three have one prompt
    for seed in (0, 2, 3):
        assert json.loads(grammars.text(texts[seed]))["on"] == 17
    # The text without a schema is as alone, with no grammar in its steps.
    (alone, *_), _ = drawn_by(make_loop(grammars, 8), [None], seed=1)
    assert texts[1] == [token.id for token in alone[0]]
    assert blocks[8] < blocks[1] / 1.5


ENDING = json.dumps(object_of(name={"enum": ["ab", "cd"]}, last={"const": "ofalltexts"}))


def texts_of(loop, schemas, **more):
    """The token ids and the end of a text of each schema, and how many blocks they took."""
    made, blocks = drawn_by(loop, schemas, **more)
    return [([token.id for token in tokens], end.reason) for tokens, end in made], blocks


def test_the_end_of_a_text_that_its_grammar_knows_takes_no_block_and_is_not_in_the_cache(grammars):
    # With log-probabilities each token passes a step.
    schemas = ENDING, SCHEMA, None, ENDING
    expected, _ = texts_of(make_loop(grammars, 8), schemas, num_logprobs=0)
    loop = make_loop(grammars, 8)
    texts, _ = texts_of(loop, schemas)
    assert texts == expected
    for text, _ in texts[::3]:
        assert json.loads(grammars.text(text))["last"] == "ofalltexts"
    _, blocks = texts_of(make_loop(grammars, 8), [ENDING])
    _, slow_blocks = texts_of(make_loop(grammars, 8), [ENDING], num_logprobs=0)
    assert blocks < slow_blocks
    afresh = make_loop(grammars, 8)  # which has nothing of it in its cache
    assert next_turn(loop, texts[0][0]) == next_turn(afresh, texts[0][0])


def test_the_known_end_of_a_text_ends_at_its_limit_and_at_a_stop_token(grammars):
    ((whole, reason),), _ = texts_of(make_loop(grammars, 8), [ENDING])
    assert reason == "stop"
    most = len(whole) - 3
    (cut,), _ = texts_of(make_loop(grammars, 8), [ENDING], max_new_tokens=most)
    assert cut == (whole[:most], "length")
    stop = whole[most - 1]
    first = whole.index(stop) + 1
    (stopped,), _ = texts_of(make_loop(grammars, 8), [ENDING], stop_ids=frozenset([stop]))
    assert stopped == (whole[:first], "stop")


STRING = json.dumps(
    object_of(name={"type": "string", "pattern": "^[a-d]{16,32}$"}, on={"const": 1})
)


def test_a_long_string_is_drawn_ahead_and_what_the_grammar_does_not_know_is_drawn_again(grammars):
    texts, blocks = assert_same_in_steps_of_one_token(grammars, [STRING] * 3, 56, num_reused=3)
    for tokens in texts:
        found = json.loads(grammars.text(tokens))
        assert 16 <= len(found["name"]) <= 32
        assert found["on"] == 1
    assert blocks[8] < blocks[1] / 2.5


def test_schemas_are_kept_for_later_requests_up_to_their_bytes(grammars, monkeypatch):
    schemas = [json.dumps({"enum": [n] * 10}) for n in range(10)]
    monkeypatch.setattr(grammar, "RECENT_BYTES", 3 * len(schemas[0]))
    kept = [weakref.ref(grammars.compiled(each)) for each in schemas]
    assert [each() is not None for each in kept] == [False] * 7 + [True] * 3
    assert grammars.compiled(schemas[7]) is kept[7]()
    grammars.compiled(schemas[0])
    assert [each() is not None for each in kept] == [False] * 7 + [True, False, True]
    monkeypatch.setattr(grammar, "RECENT", 1)
    grammars.begin(schemas[9], [], frozenset())
    assert kept[7]() is not None, "the loop changes nothing"
    grammars.compiled(schemas[1])
    assert [each() is not None for each in kept] == [False] * 10
    grammars.compiled('{"enum": ["' + "a" * len(schemas[0]) * 3 + '"]}')
    assert list(grammars._recent) == [schemas[1]], "one that is larger than all takes no room"


def test_schemas_are_kept_up_to_the_time_that_they_took_and_the_latest_in_any_case(
    grammars, monkeypatch
):
    """Some small ones take seconds, and hundreds of megabytes."""
    seconds = dict.fromkeys(('{"const": 1}', '{"const": 2}', '{"const": 3}'), 0.08)
    refused = '{"const": 1, "type": "nope"}'  # keeps nothing that is compiled
    seconds |= {'{"const": "slow"}': 5.0, refused: 5.0}
    make = grammar.Grammar.__init__

    def making(self, schema, *args):
        make(self, schema, *args)
        self.compile_seconds = seconds[schema]

    monkeypatch.setattr(grammar.Grammar, "__init__", making)
    kept = []
    grammars._recent.clear()
    for schema in (*seconds, '{"const": 2}'):
        grammars.compiled(schema)
        kept.append([json.loads(each)["const"] for each in grammars._recent])
    assert kept == [[1], [1, 2], [2, 3], ["slow"], [1], [1, 2]]


def test_what_has_a_problem_takes_no_memory(grammars, monkeypatch):
    made, make = [], grammar.Grammar.compiled

    def making(self):
        compiled = make(self)
        made.append(weakref.ref(compiled))
        return compiled

    monkeypatch.setattr(grammar.Grammar, "compiled", making)
    kept = grammars.compiled('{"type": "nope"}')
    assert kept.problem
    assert made[0]() is None
    with pytest.raises(GrammarFailed, match="nope"):
        grammars.begin('{"type": "nope"}', [], frozenset())


def test_two_threads_that_bring_the_same_schema_get_the_same_grammar(grammars, monkeypatch):
    together, make = threading.Barrier(2), grammar.Grammar.__init__

    def making(self, schema, *args):
        make(self, schema, *args)
        together.wait(30)

    monkeypatch.setattr(grammar.Grammar, "__init__", making)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(grammars.compiled, ['{"const": "two"}'] * 2)
    assert first is second


# --- limits -----------------------------------------------------------------------------------

WIDE = json.dumps({"type": "string", "pattern": "^(.{1,60}[a-z ]){10}$"})
TWO_DEFS = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}


@pytest.fixture
def limited(monkeypatch):
    """Sets the most states that what is compiled has, for all its texts together, and the work of
    a step.
    """

    def limit(most_states=250_000, step_work=200_000):
        limits = {"max_lexer_states": most_states, "step_lexer_fuel": step_work}
        monkeypatch.setattr(grammar, "LIMITS", limits)

    return limit


def drawn(state, rng, most_tokens):
    """Tokens drawn from the masks, until the text is complete or has so many."""
    tokens = []
    while not state.is_complete and len(tokens) < most_tokens:
        allowed = tokens_of(state.allowed_W)
        tokens.append(state.forced[0] if state.forced else int(rng.choice(allowed)))
        state.add(tokens[-1])
    return tokens


LESS_WIDE = WIDE.replace("60", "30")


def test_a_text_that_could_be_made_can_be_taken_up_by_another_process(grammars, limited):
    limited(step_work=20_000)
    tokens = drawn(grammars.begin(LESS_WIDE, [], frozenset()), np.random.default_rng(0), 140)
    for number in (len(tokens) - 1, len(tokens) // 2):
        other = Grammars(grammars.vocabulary)  # which has compiled nothing yet
        kept = other.compiled(LESS_WIDE)
        state = other.begin(LESS_WIDE, tokens[:number], frozenset())
        assert drawn(state, np.random.default_rng(0), 1)
        assert kept.latest.num_masks > number


@pytest.fixture
def compiled(monkeypatch):
    """The schemas that are compiled from now on, in order."""
    schemas, make = [], grammar.Grammar.compiled
    monkeypatch.setattr(
        grammar.Grammar, "compiled", lambda its: schemas.append(its.schema) or make(its)
    )
    return schemas


def drawn_side_by_side(grammars, schema, num_texts):
    """Tokens of each text; all have their first, then their second, and so on."""
    states = [grammars.begin(schema, [], frozenset()) for _ in range(num_texts)]
    rngs = [np.random.default_rng(number) for number in range(num_texts)]
    texts = [[] for _ in states]
    for _ in range(120):
        for tokens, state, rng in zip(texts, states, rngs, strict=True):
            tokens += drawn(state, rng, 1)
    return texts


def test_what_other_texts_have_needed_neither_fails_nor_changes_a_text(
    grammars, limited, monkeypatch, compiled
):
    monkeypatch.setattr(grammar, "ALONE_SECONDS", 10.0)
    schema = LESS_WIDE.replace("10", "9")
    kept = grammars.compiled(schema)
    alike = drawn_side_by_side(grammars, schema, 12)
    assert len(compiled) == 1
    del kept
    grammars._recent.clear()
    limited(600, step_work=20_000)
    kept = grammars.compiled(schema)
    compiled.clear()
    assert drawn_side_by_side(grammars, schema, 12) == alike
    assert 1 < len(compiled) <= 12, "once for a text"
    for tokens in alike:
        assert len(tokens) == 120 or json.loads(grammars.text(tokens))
    # The next request begins with one that is not worn.
    compiled.clear()
    assert grammars.compiled(schema) is kept
    assert grammars.compiled(schema) is kept
    assert len(compiled) == 1


@pytest.mark.parametrize("most_states", [100, 300])
def test_a_text_that_outgrows_the_limits_is_tried_alone_once_and_fails_with_what_was_wrong(
    grammars, limited, monkeypatch, compiled, capfd, most_states
):
    monkeypatch.setattr(grammar, "ALONE_SECONDS", 10.0)
    limited(most_states)
    state = grammars.begin(WIDE, [], frozenset())
    compiled.clear()
    with pytest.raises(GrammarFailed, match="too many states"):
        drawn(state, np.random.default_rng(0), 120)
    assert len(compiled) == 1
    assert not state.is_complete
    assert capfd.readouterr().err == "", "else a client could fill the log"
    # It leaves nothing behind.
    limited(600)
    drawn(grammars.begin(WIDE, [], frozenset()), np.random.default_rng(0), 120)


def test_a_text_is_not_tried_alone_where_compiling_takes_long(
    grammars, limited, monkeypatch, compiled
):
    monkeypatch.setattr(grammar, "ALONE_SECONDS", 0.0)
    limited(300)
    schema = WIDE.replace("10", "9").replace("60", "59")
    kept = grammars.compiled(schema)
    with pytest.raises(GrammarFailed, match="too many states"):
        drawn_side_by_side(grammars, schema, 12)
    assert len(compiled) == 1, "the loop compiles nothing"
    assert grammars.compiled(schema) is kept
    assert len(compiled) == 2, "the next request does"


def test_a_text_that_no_token_may_continue_fails_and_nothing_is_compiled_again(grammars, compiled):
    """Others of its schema may do without what has no end."""
    loop = {"$ref": "#/$defs/a", "$defs": TWO_DEFS}
    properties = {"x": {"type": "boolean"}, "a": loop}
    schema = {"type": "object", "properties": properties, "required": ["x"], "$defs": TWO_DEFS}
    schema = json.dumps(schema | {"additionalProperties": False})
    kept, problems = grammars.compiled(schema), []
    for seed in range(20):
        try:
            state = grammars.begin(schema, [], frozenset())
            tokens = drawn(state, np.random.default_rng(seed), 60)
            assert json.loads(grammars.text(tokens)).keys() == {"x"}
        except GrammarFailed as error:
            problems.append(str(error))
    assert 0 < len(problems) < 20
    assert all("no token may come next" in problem for problem in problems)
    assert grammars.compiled(schema) is kept
    assert len(compiled) == 1


def test_a_request_keeps_its_schema_compiled_while_others_come_and_go(
    grammars, monkeypatch, compiled
):
    monkeypatch.setattr(grammar, "RECENT", 1)
    schema = '{"const": "kept"}'
    kept = grammars.compiled(schema)
    kept.latest.is_full = True
    grammars.compiled(schema)  # another request, which has it compiled again
    grammars.compiled('{"const": "other"}')
    gc.collect()
    compiled.clear()
    grammars.begin(schema, [], frozenset())  # as after a pause
    assert not compiled
    assert kept.latest.num_masks == 1


def test_a_schema_is_compiled_again_after_many_tokens(grammars, monkeypatch, compiled):
    monkeypatch.setattr(grammar, "MASKS", 50)
    first = grammars.compiled(STRING)
    used = grammars.begin(STRING, [], frozenset())
    assert grammars.compiled(STRING) is first
    for seed in range(4):
        drawn(grammars.begin(STRING, [], frozenset()), np.random.default_rng(seed), 60)
    assert first.latest.num_masks > 50
    assert grammars.compiled(STRING) is first
    assert len(compiled) == 2
    assert first.latest.num_masks == 0
    # A text that has begun goes on with the first.
    assert json.loads(grammars.text(drawn(used, np.random.default_rng(0), 60)))["on"] == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        object_of(a={"$ref": "#/$defs/a"}) | {"$defs": TWO_DEFS},
        object_of(a={"$ref": "#"}),
    ],
    ids=str,
)
def test_a_schema_that_no_text_obeys_has_a_problem(grammars, schema):
    assert grammars.compiled(json.dumps(schema)).problem


def test_a_text_does_not_begin_with_more_than_the_grammar_may_read_ahead(grammars):
    longest = 2 * grammar.MOST_FORCED  # tokens of one letter, or of two
    assert grammars.compiled(json.dumps({"const": "x" * (grammar.MOST_FORCED - 2)})).problem is None
    for schema in ({"const": "x" * longest}, {"type": "string", "pattern": f"^x{{{longest}}}$"}):
        problem = grammars.compiled(json.dumps(schema)).problem
        assert "begins with the same" in problem or "too many" in problem


# --- a trial in a child -----------------------------------------------------------------------

# 500 bytes that compile without end, and take hundreds of megabytes within seconds.
ENDLESS = [{"pattern": f"(a|b)*a(a|b){{{number}}}"} for number in range(1, 16)]
ENDLESS = json.dumps({"type": "string", "allOf": ENDLESS})


@pytest.fixture
def trial(grammars):
    trial = grammar_trial.GrammarTrial(grammars.vocabulary)
    yield trial
    trial.close()


@pytest.mark.parametrize(
    ("limit", "value", "problem"), [("SECONDS", 0.2, "0.2 s"), ("MEGABYTES", 1, "1 MB of memory")]
)
def test_a_schema_that_compiles_without_end_is_refused_and_the_next_one_tried(
    trial, monkeypatch, limit, value, problem
):
    assert trial.problem(SCHEMA) is None
    with monkeypatch.context() as patch:
        patch.setattr(grammar_trial, "MEGABYTES", 4096)  # A quick machine takes 256 within 0.2 s.
        patch.setattr(grammar_trial, limit, value)
        assert trial.problem(ENDLESS) == f"it takes more than {problem} to compile"
    assert trial.problem(SCHEMA) is None
    assert "nope" in trial.problem('{"type": "nope"}')


def test_a_schema_whose_processor_time_ends_no_child_is_refused_by_the_clock(trial, monkeypatch):
    def without_timer(command, *args, popen=subprocess.Popen, **options):
        """The child, for which processor time never runs out."""
        deaf = "import signal; signal.signal(signal.SIGPROF, signal.SIG_IGN)"
        code = f"{deaf}; from {command[-1]} import main; main()"
        return popen([*command[:2], "-c", code], *args, **options)

    monkeypatch.setattr(subprocess, "Popen", without_timer)
    monkeypatch.setattr(grammar_trial, "SECONDS", 0.1)
    monkeypatch.setattr(grammar_trial, "MEGABYTES", 4096)
    assert trial.problem(ENDLESS) == "it takes more than 0.1 s to compile"


def test_a_trial_ends_at_once_when_it_is_closed(trial, monkeypatch):
    monkeypatch.setattr(grammar_trial, "SECONDS", 1000.0)
    with ThreadPoolExecutor(1) as threads:
        endless = threads.submit(trial.problem, ENDLESS)
        while trial._process is None:
            assert not endless.done()
        trial.close()
        with contextlib.suppress(NoGrammar):  # it may have been closed before the child was ready
            assert endless.result(30)
    with pytest.raises(NoGrammar):
        trial.problem(SCHEMA)


def test_a_schema_that_failed_its_trial_is_not_compiled_here(grammars, compiled):
    tried = Grammars(grammars.vocabulary, lambda schema: f"no {len(schema)}")
    assert tried.compiled(SCHEMA).problem == f"no {len(SCHEMA)}"
    assert not compiled
    assert tried.compiled(grammar.ANY_OBJECT).problem is None


# --- turns ------------------------------------------------------------------------------------


def test_clients_share_the_time_of_grammars_and_texts_do_not_change(grammars, monkeypatch):
    def texts():
        loop = Loop(CONFIG, parts_of, limits=limits, grammars=grammars)
        streams = [
            loop.submit(
                request((40 + seed,), path=seed % 2, max_new_tokens=40, schema=STRING)
                if seed % 3
                else request((40 + seed,), path=seed % 2, max_new_tokens=20)
            )
            for seed in range(6)
        ]
        run_until_idle(loop)
        return [read(stream) for stream in streams]

    parts_of = lambda key: contextlib.nullcontext(prepared(key[1]))  # noqa: E731
    limits = LoopLimits(rows=6, rows_per_step=(8,), steps_per_block=4)
    expected = texts()
    monkeypatch.setattr(fairness, "GRAMMAR_SECONDS", 0.0)  # one row in a turn
    assert texts() == expected


def test_the_row_of_a_client_whose_grammars_took_little_is_first():
    turn = fairness.GrammarTurn()

    def order(*clients):
        return turn.in_order(clients, str)

    assert order("a", "b", "a") == ["a", "b", "a"]
    turn.begin()
    with turn.charged("a"):
        sum(range(400_000))
    assert turn.is_over
    assert order("a", "b", "a") == ["b", "a", "a"]
    assert order("a", "b", "new") == ["b", "new", "a"]
    turn.begin()
    assert not turn.is_over
    assert order("a", "old") == ["a", "old"], "a new client owes no less than the others"


# --- one that is worn ------------------------------------------------------------------------


@pytest.fixture
def renewing(grammars, monkeypatch):
    """A grammar that another thread compiles again, until the event is set."""
    begun, may_end, make = threading.Event(), threading.Event(), grammar.Grammar.compiled
    worn = grammars.compiled(STRING)

    def slowly(self):
        begun.set()
        assert may_end.wait(30)
        return make(self)

    monkeypatch.setattr(grammar.Grammar, "compiled", slowly)

    def renew(*, is_full):
        worn.latest.is_full, worn.latest.num_masks = is_full, grammar.MASKS
        assert not worn.is_ready
        first = threads.submit(grammars.compiled, STRING)
        assert begun.wait(30)
        return worn, first, threads

    with ThreadPoolExecutor(2) as threads:
        renew.may_end = may_end
        yield renew
        may_end.set()


def test_while_a_worn_grammar_is_compiled_again_others_go_on_with_what_there_is(grammars, renewing):
    worn, first, _ = renewing(is_full=False)
    before = worn.latest
    assert worn.is_ready
    assert grammars.compiled(STRING) is worn
    assert worn.latest is before
    state = grammars.begin(STRING, [], frozenset())
    renewing.may_end.set()
    assert first.result() is worn
    assert worn.latest is not before
    # What began earlier wears out the first only.
    drawn(state, np.random.default_rng(0), 60)
    assert worn.latest.num_masks == 0


def test_others_wait_for_a_grammar_that_is_full(grammars, renewing):
    worn, first, threads = renewing(is_full=True)
    before = worn.latest
    assert not worn.is_ready
    second = threads.submit(lambda: grammars.compiled(STRING).latest)
    renewing.may_end.set()
    assert first.result() is worn
    assert second.result() is worn.latest is not before
