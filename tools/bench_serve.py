"""Serving many paths on this machine: tokens a second, and memory for some of them.

    python tools/bench_serve.py
    python tools/bench_serve.py --only memory --rounds 5 --memory-tokens 96
    python tools/bench_serve.py --only paths --sides 2,8      # the first table alone
    python tools/bench_serve.py --only paths --sides 8 --at-random

Everything runs in this process, with random parameters of the quickstart's sizes (0.84 M a path).

The first table decodes 64 rows, spread evenly over the paths of grids from one path to 16x16
(`--at-random`: each row is on any path). Rows of several paths share their steps, or every path
takes separate steps.

Then 256 paths with an embedding each serve 64 clients that ask one request after another, with
memory for all paths and for 64 of them. Paths are asked equally often, or in proportion to
1 / rank, or so with prompts of 8 to 64 tokens and answers of 4 to 60.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from support.command_line import at_least_one, parser_of, several
from support.many_paths import (
    ROWS,
    ManyPaths,
    alike,
    at_random,
    evenly,
    mixed,
    skewed,
    square,
    square_with_embeddings,
)
from support.rounds import in_turn, ratio_of

if TYPE_CHECKING:
    from dipaco.model.config import ModelConfig

PROMPT = 16
SIDES = (1, 2, 4, 8, 16)  # sides of the grids
NEW_TOKENS = 32  # tokens of a request
HOME = Path(__file__).parents[1]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--memory-tokens",
        type=at_least_one,
        default=NEW_TOKENS,
        help=f"of each request with memory for some paths ({NEW_TOKENS}), but for mixed lengths",
    )
    parser.add_argument(
        "--only", choices=["paths", "memory"], default="paths",
        help="memory: memory for some paths; paths: that and the table of grids",
    )  # fmt: skip
    parser.add_argument(
        "--sides",
        type=several,
        metavar="N,M",
        help="of the grids of `paths`, beside one path, and nothing else of it",
    )
    parser.add_argument(
        "--at-random", action="store_true", help="each row of `paths` on any path, not evenly"
    )
    parser.add_argument(
        "--rounds", type=at_least_one, default=7, help="of each load on many paths (7)"
    )
    options = parser.parse_args()
    if options.memory_tokens > (most := model_of_many_paths().max_length - PROMPT):
        parser.error(f"--memory-tokens {options.memory_tokens}: the context has room for {most}")
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(bench_paths(Path(name), options)))


def model_of_many_paths() -> "ModelConfig":
    """The sizes of each."""
    from dipaco.overrides import load_config

    return load_config(HOME / "configs" / "quickstart.py").model


def bench_paths(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures many paths, and returns entries of the last line."""
    model, rounds = model_of_many_paths(), options.rounds

    def with_memory_for_some(rounds: int) -> dict[str, float]:
        return memory_for_some(model, SIDES[-1], scratch, rounds, options.memory_tokens)

    if options.only == "memory":
        return {"paths_256_memory_for_64": with_memory_for_some(rounds)}
    sides = SIDES if options.sides is None else (1, *(side for side in options.sides if side > 1))
    draw = at_random if options.at_random else lambda number, paths, seed: evenly(number, paths)
    rows = {"rows_64_on_paths": rows_on_paths(model, scratch, rounds, sides, draw)}
    if options.at_random:
        rows = {f"{name}_at_random": rates for name, rates in rows.items()}
    if options.sides is not None:
        return rows
    return {**rows, "paths_256_memory_for_64": with_memory_for_some(max(1, rounds // 2))}


class Served(NamedTuple):
    """A way of serving the paths of a grid."""

    side: int
    is_together: bool


def rows_on_paths(
    model: "ModelConfig",
    scratch: Path,
    rounds: int,
    sides: tuple[int, ...],
    draw: Callable[[int, int, int], list[int]],
) -> dict[str, int]:
    """Tokens a second of 64 rows, by the number of paths that `draw` (rows, paths, seed) spreads
    them over. A server takes the way that it estimates to be the sooner.
    """
    one_path = Served(1, False)
    print("paths   tok/s, together   in turn   together / in turn [95 %]   sooner / one")
    told: dict[str, int] = {}
    for side in sides:
        both = Served(side, True), Served(side, False)
        rates = _rates_of([one_path, *both][: 3 if side > 1 else 1], model, scratch, rounds, draw)
        median = lambda way: statistics.median(rates[way])  # noqa: B023, E731
        if side == 1:
            told["1"] = round(median(one_path))
            print(f"    1{median(one_path):33.0f}", flush=True)
            continue
        ratio = ratio_of(*(rates[way] for way in both))
        sooner = max(both, key=median)
        to_one = ratio_of(rates[sooner], rates[one_path]).median
        told[str(side**2)] = round(median(sooner))
        print(
            f"{side**2:5}  {median(both[0]):16.0f}  {median(both[1]):8.0f}"
            f"  {ratio!s:>26}  {to_one:14.2f}",
            flush=True,
        )
    return told


def _rates_of(
    ways: list[Served],
    model: "ModelConfig",
    scratch: Path,
    rounds: int,
    draw: Callable[[int, int, int], list[int]],
) -> dict[Served, list[float]]:
    """Tokens a second of each round, in turn."""
    import jax

    engines = {
        way: ManyPaths(
            model,
            square(model, way.side),
            scratch / str(way.side),
            shares_steps=way.is_together,
            always_together=way.is_together,
        )
        for way in ways
    }
    for engine in engines.values():
        loads = {tuple(draw(ROWS, engine.num_paths, each)) for each in range(rounds)}
        for paths in loads:  # compiles what the rounds need
            engine.decode_seconds(paths, NEW_TOKENS)

    def decoding(engine: ManyPaths) -> Callable[[int], float]:
        def rate(number: int) -> float:
            paths = draw(ROWS, engine.num_paths, number)
            return ROWS * NEW_TOKENS / engine.decode_seconds(paths, NEW_TOKENS)

        return rate

    rates = in_turn({way: decoding(engine) for way, engine in engines.items()}, rounds)
    engines.clear()
    jax.clear_caches()  # Programs of all sides together would be more than a process may map.
    return rates


def memory_for_some(
    model: "ModelConfig",
    side: int,
    scratch: Path,
    rounds: int,
    new_tokens: int,
    num_fitting: int = ROWS,
) -> dict[str, float]:
    """The speed with memory for some paths, as a share of the speed with memory for all paths.
    Milliseconds within which 95 % of first tokens come are beside it. Clients ask for every path
    equally often, in proportion to 1 / rank, and so with lengths that are mixed.
    """
    from dipaco.serving.warm_up import keep_what_there_is

    topology = square_with_embeddings(model, side)
    engines = {
        number: ManyPaths(model, topology, scratch / f"memory for {number}", cached_paths=number)
        for number in (None, num_fitting)
    }
    for engine in engines.values():
        engine.compile()  # mixed lengths may come upon any program, in any round
    shares = {}
    for name, draw in (("even", evenly), ("skewed", skewed), ("mixed", skewed)):
        loads = {number: [] for number in engines}
        for each in range(rounds + 1):
            paths = draw(2 * topology.num_paths, topology.num_paths)
            np.random.default_rng(each).shuffle(paths)
            asked = mixed(paths, seed=each) if name == "mixed" else alike(paths, new_tokens)
            for number, engine in engines.items():
                load = engine.load(asked)
                if each:
                    loads[number].append(load)
            keep_what_there_is()  # A server does this at its start.
        for number, own in loads.items():
            firsts = [1000 * seconds for load in own for seconds in load.first_token_seconds]
            latest, held = np.percentile(firsts, 95), number or "all"
            print(
                f"{topology.num_paths} paths, {name}, memory for {held}: "
                f"{statistics.median(load.tokens_per_second for load in own):.0f} tok/s, first "
                f"token {statistics.median(firsts):.0f} ms, p95 {latest:.0f} ms",
                flush=True,
            )
            shares[f"{name}_p95_first_token_ms_memory_for_{held}"] = round(latest)
        pairs = zip(loads[num_fitting], loads[None], strict=True)
        ratios = [some.tokens_per_second / full.tokens_per_second for some, full in pairs]
        shares[name] = round(statistics.median(ratios), 3)
    for engine in engines.values():
        engine.stop()
    return shares


if __name__ == "__main__":
    main()
