"""Structured output against free text, in the same loop and the same call. Every draw is checked.

    python tools/bench_structured.py --run runs/quickstart
    python tools/bench_structured.py --run runs/quickstart --draws 50 --rows 1,8 --pairs 2
    python tools/bench_structured.py --run runs/quickstart --width 256      # 8.4 M parameters
    python tools/bench_structured.py --run runs/quickstart --schema note    # a long string in it

A path of the run, or one of fresh parameters (`--width`) with the run's tokenizer, makes texts that
obey a schema, drawn at temperature 1, and then as many free texts of the same lengths. `--rows`
texts are made at once, and both kinds in turn. A ratio is tokens per second with the schema /
without, the median over the pairs with a 95 % interval. `--draws` texts in all are parsed and
compared with the schema by hand, and their tokens of which the schema allows one only are counted:
a server does not draw these. The last line is JSON. The exit code is 1 unless every text obeys the
schema.
"""

import contextlib
import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from support.command_line import parser_of, several
from support.rounds import median_and_interval

from dipaco.model.inference import prepare
from dipaco.model.spec import initialise
from dipaco.runs.opening import reading
from dipaco.serving.decoding.grammar import Grammars, GrammarVocabulary
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish, GenerationRequest

PROMPT = 8
WARM = SamplingSettings(temperature=1.0)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,12}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", "fish"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
NOTE = {
    "type": "object",
    "properties": {
        "subject": {"enum": ["work", "home", "other"]},
        "text": {"type": "string", "minLength": 60, "maxLength": 90},
        "is_urgent": {"type": "boolean"},
    },
    "required": ["subject", "text", "is_urgent"],
    "additionalProperties": False,
}
SCHEMAS = {"record": SCHEMA, "note": NOTE}


def is_valid(text: str, schema: str) -> bool:
    """True if a text obeys the schema of that name."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(found, dict) and (is_note if schema == "note" else is_record)(found)


def is_note(found: dict[str, Any]) -> bool:
    return (
        list(found) == ["subject", "text", "is_urgent"]
        and found["subject"] in ("work", "home", "other")
        and isinstance(found["text"], str)
        and 60 <= len(found["text"]) <= 90
        and type(found["is_urgent"]) is bool
    )


def is_record(found: dict[str, Any]) -> bool:
    return (
        list(found) == ["name", "age", "kind", "tags"]
        and re.fullmatch("[a-z]{3,12}", found["name"]) is not None
        and type(found["age"]) is int
        and 0 <= found["age"] <= 120
        and found["kind"] in ("cat", "dog", "fish")
        and 1 <= len(found["tags"]) <= 3
        and all(type(each) is bool for each in found["tags"])
    )


def num_forced(grammars: Grammars, schema: str, tokens: list[int], stop_ids: frozenset[int]) -> int:
    """Tokens of a text in whose place the schema allows no other."""
    state, found = grammars.begin(schema, [], stop_ids), 0
    for token in tokens:
        found += bool(state.forced)
        state.add(token)
    return found


def made_by(
    loop: Loop, requests: list[GenerationRequest], clock: Callable[[], float]
) -> tuple[list[list[int]], float]:
    """The tokens of each request, and the seconds that all took."""
    started = clock()
    streams = [loop.submit(request) for request in requests]
    while loop.run_once():
        pass
    seconds = clock() - started
    texts = []
    for stream in streams:
        tokens = []
        while not isinstance(item := stream.get(timeout_seconds=0), Finish):
            tokens.append(item.id)
        if item.error is not None:
            raise item.error
        texts.append(tokens)
    return texts, seconds


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--schema", choices=SCHEMAS, default="record",
        help="record: four short fields, most tokens are forced; note: most are drawn, in a string",
    )  # fmt: skip
    parser.add_argument("--rows", type=several, default=(1, 8, 32), help="at once (1,8,32)")
    parser.add_argument("--pairs", type=int, default=5, help="of each number of rows (5)")
    parser.add_argument("--draws", type=int, default=500, help="texts that are checked (500)")
    parser.add_argument(
        "--width", type=int, help="d_model of fresh parameters: 4 layers, vocabulary 8192"
    )
    parser.add_argument(
        "--processor-time", action="store_true", help="of all threads, where others use the machine"
    )
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.monotonic
    with reading(options.run) as run:
        release = run.ledger.facts.release("modular")
        config, tokenizer = run.config.model, run.corpus.tokenizer()
        end = run.corpus.edges.tokens.end
        parts = run.path_of(release, 0)
    if options.width:
        config = dataclasses.replace(
            config,
            vocab_size=8192,
            d_model=options.width,
            num_layers=4,
            num_heads=4,
            d_ff=4 * options.width,
        )
        parts = initialise(config, jax.random.key(0))
    prepared = prepare(config, parts)
    vocabulary = GrammarVocabulary(tokenizer.library.to_str(), config.vocab_size, end)
    grammars, rng = Grammars(vocabulary), np.random.default_rng(0)
    schema = json.dumps(SCHEMAS[options.schema])
    grammars.compiled(schema)  # A server keeps it from the first request on.
    # Counting has separate grammars, or it would wear out the timed ones.
    counted_by = Grammars(vocabulary)
    stop_ids = frozenset() if end is None else frozenset({end})
    ratios, checked, valid, forced, tokens_made, seed = {}, 0, 0, 0, 0, 0
    for rows in options.rows:
        limits = LoopLimits(rows=rows, rows_per_path=rows)
        loop = Loop(
            config, lambda *_: contextlib.nullcontext(prepared), limits=limits, grammars=grammars
        )

        def request(number: int, **more) -> GenerationRequest:
            prompt = tuple(rng.integers(1, config.vocab_size, PROMPT).tolist())
            return GenerationRequest(
                prompt_ids=prompt, path=0, sampling=WARM, seed=number, stop_ids=stop_ids, **more
            )

        most = config.max_length - PROMPT
        pairs = []  # the first compiles, and does not count
        while len(pairs) <= options.pairs or (rows > 1 and checked < options.draws):
            structured = [
                request(seed + n, max_new_tokens=most, schema=schema) for n in range(rows)
            ]
            seed += rows
            texts, seconds = made_by(loop, structured, clock)
            for tokens in texts:
                text = tokenizer.decode([token for token in tokens if token != end])
                checked, valid = checked + 1, valid + is_valid(text, options.schema)
                forced += num_forced(counted_by, schema, tokens, stop_ids)
                tokens_made += len(tokens)
            lengths = [len(tokens) for tokens in texts]
            free = [
                request(seed + n, max_new_tokens=length, min_new_tokens=length)
                for n, length in enumerate(lengths)
            ]
            free_texts, free_seconds = made_by(loop, free, clock)
            assert [len(tokens) for tokens in free_texts] == lengths
            pairs.append(free_seconds / seconds)
        ratio = median_and_interval(pairs[1:])
        ratios[str(rows)] = round(ratio.median, 3)
        print(f"{rows} rows: {ratio} of the speed without a schema")
    found = {"draws": checked, "valid": valid, "forced": round(forced / tokens_made, 3)}
    print(json.dumps({"speed_with_schema": ratios, **found}))
    if valid < checked:
        sys.exit(1)


if __name__ == "__main__":
    main()
