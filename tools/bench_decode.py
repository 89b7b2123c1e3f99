"""Decoding on this machine against `transformers.generate`, on the same path, in the same call.

    python tools/bench_decode.py
    python tools/bench_decode.py --pairs 3 --new-tokens 16 --width 64      # its smallest form

A path of 8.39 M parameters (d_model 256, 4 layers, 4 heads, d_ff 1024, vocabulary 8192) with fresh
parameters is exported and loaded by `transformers`. Both continue the same random prompts of 16
tokens greedily by 64, in float32, 1, 8 and 32 rows at once. Ours is the serving loop as a server
runs it, from submit to the last token. Theirs is `generate` with its cache, at 1 or 2 threads,
whichever was faster just before. Both run in turn, pair by pair. A ratio is theirs / ours in
seconds, the median over the pairs with a 95 % interval.

Tokens must be the same. Where they first differ, the two largest logits there are looked at: a gap
below 1e-4 is a tie that rounding decides, and is counted. Anything else is an error.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rivals.transformers_rival import Theirs
from support.command_line import parser_of
from support.rounds import in_turn, ratio_of, seconds_of

from dipaco.model.config import ModelConfig, num_parameters
from dipaco.model.huggingface import export_checkpoint
from dipaco.model.inference import prepare
from dipaco.model.spec import initialise
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest

PROMPT = 16
TIE = 1e-4


class Ours:
    """The serving loop, its crank turned here."""

    def __init__(self, config: ModelConfig, prepared: Any, rows: int):
        limits = LoopLimits(
            rows=rows, rows_per_path=rows, prompt_tokens_per_iteration=max(512, rows * PROMPT)
        )
        self.loop = Loop(config, lambda *_: contextlib.nullcontext(prepared), limits=limits)

    def generate(self, prompts: np.ndarray, new_tokens: int) -> np.ndarray:
        """Greedy continuations, like those of `Theirs.generate`."""
        streams = [
            self.loop.submit(
                GenerationRequest(prompt_ids=tuple(prompt), path=0, max_new_tokens=new_tokens)
            )
            for prompt in prompts.tolist()
        ]
        while self.loop.run_once():
            pass
        return np.array([list(_ids(stream)) for stream in streams])


def _ids(stream):
    while not isinstance(item := stream.get(timeout_seconds=0), Finish):
        yield item.id


def compare_tokens(theirs: Theirs, prompts, our_tokens, their_tokens) -> tuple[int, int]:
    """Counts equal tokens, and rows that parted at a tie. Exits at another parting."""
    same, ties = 0, 0
    for prompt, ours, other in zip(prompts, our_tokens, their_tokens, strict=True):
        differ = np.flatnonzero(ours != other)
        if not len(differ):
            same += len(ours)
            continue
        same, ties = same + int(differ[0]), ties + 1
        gap = theirs.smallest_gap(np.append(prompt, ours[: differ[0]]), ours[differ[0] :][:1])
        print(f"  parted at token {differ[0]}: {ours[differ[0]]} against {other[differ[0]]}, "
              f"the two largest logits {gap:.1e} apart")  # fmt: skip
        if gap >= TIE:
            raise SystemExit("the tokens differ")
    return same, ties


def measure(rows: int, options: argparse.Namespace, config: ModelConfig, prepared, theirs: Theirs):
    """Prints one line of the table and returns the median ratio."""
    ours, rng = Ours(config, prepared, rows), np.random.default_rng(rows)
    draw = lambda: rng.integers(0, config.vocab_size, (rows, PROMPT), np.int32)  # noqa: E731
    threads = theirs.choose_threads(lambda: theirs.generate(draw(), options.new_tokens))
    ours.generate(draw(), options.new_tokens)  # compiles

    prompts, made = [draw() for _ in range(options.pairs)], {}

    def generating(side: Ours | Theirs) -> Callable[[int], float]:
        def measure(number: int) -> float:
            return seconds_of(lambda: made.setdefault(side, []).append(
                side.generate(prompts[number], options.new_tokens)
            ))  # fmt: skip

        return measure

    seconds = in_turn({side: generating(side) for side in (ours, theirs)}, options.pairs)
    same, ties = np.sum([
        compare_tokens(theirs, *each)
        for each in zip(prompts, made[ours], made[theirs], strict=True)
    ], axis=0)  # fmt: skip
    ratio, tokens = ratio_of(seconds[theirs], seconds[ours]), rows * options.new_tokens
    print(
        f"{rows:4}  {tokens / statistics.median(seconds[ours]):9.0f}"
        f"  {tokens / statistics.median(seconds[theirs]):12.0f} ({threads} threads)"
        f"  {ratio!s:>20}  {same} tokens the same, {ties} ties",
        flush=True,
    )
    return round(ratio.median, 3)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="of runs, for each number of rows")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--width", type=int, default=256, help="d_model; d_ff is four times that")
    options = parser.parse_args()

    config = ModelConfig(
        vocab_size=32 * options.width,
        d_model=options.width,
        num_layers=4,
        num_heads=4,
        d_ff=4 * options.width,
        max_length=256,
    )
    parts = jax.device_get(initialise(config, jax.random.key(0)))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "tokenizer.json").write_text("{}")
        export_checkpoint(config, parts, Path(name) / "tokenizer.json", Path(name) / "path")
        theirs = Theirs(Path(name) / "path")
    prepared = prepare(config, parts)
    print(f"{num_parameters(config) / 1e6:.2f} M parameters, prompts of {PROMPT} tokens")
    print("rows  ours tok/s  transformers tok/s      ours / theirs [95 %]")
    ratios = {str(rows): measure(rows, options, config, prepared, theirs) for rows in options.rows}
    print(json.dumps({"vs_transformers": ratios}))


if __name__ == "__main__":
    main()
