"""`dipaco serve` on this machine against `transformers.generate`: tokens a second, first token.

    python tools/bench_serve.py
    python tools/bench_serve.py --run runs/quickstart --pairs 3
    python tools/bench_serve.py --only paths
    python tools/bench_serve.py --only memory --rounds 5 --memory-tokens 96
    python tools/bench_serve.py --only cold
    python tools/bench_serve.py --only paths --sides 2,8      # the first table of `paths` alone
    python tools/bench_serve.py --only paths --sides 8 --at-random

Serves a run in a process of its own and asks it over HTTP, streaming, for 64 greedy tokens after
each of 1, 8 and 32 prompts of 16 tokens at once, all of one path; in turn, pair by pair,
`transformers` continues the same prompts on the same path, exported, as one batch. A ratio is
theirs / ours in seconds, from the first request sent to the last answer complete, its median over
the pairs with a 95 % interval. Without `--run` it first trains one, for a few steps, whose paths
have 8.39 M parameters (d_model 256, 4 layers, vocabulary 8192): speed does not depend on how good
it is. Prompts are random, and such that the path goes on for all 64 tokens. Texts must be the same,
except where the two largest logits are less than 1e-4 apart somewhere in the row.

At the end it says what routing takes, as a share of reading a prompt of 128, 512 and 1,024 tokens,
for prompts that come alone and eight at once (which are routed together, and read one by one). It
reads the first 32 tokens under the base model, so the share is about 32 / length at best.

Then many paths, in this process, random parameters of the quickstart's sizes (0.84 M a path): 64
rows, spread evenly over the paths of grids from one path to 16x16 (`--at-random`: each on any
path), where rows of several paths share their steps and where every path has steps of its own, on
one device and with the paths spread over as many as `--devices` says; what is timed is decoding.
256 paths with an embedding each under 64 clients that ask one request after another, for every path
equally often, in proportion to 1 / rank, and so with prompts of 8 to 64 tokens and answers of 4 to
60, with memory for all and for 64 of them. The first tokens of a path in memory, alone and while
another is read for ten seconds. And those of a chat's second turn, on the path that has the first
one in its cache and on one that has not.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rivals.transformers_rival import Theirs, seconds
from support.bench_run import make_run
from support.cold_paths import NEW_TOKENS, memory_for_some, warm_beside_cold
from support.many_paths import ROWS, ManyPaths, at_random, evenly, square
from support.numbers import at_least_one, several
from support.paired_ratio import median_and_interval
from support.serve_process import serving
from support.thin_client import send

if TYPE_CHECKING:
    from dipaco.model.config import ModelConfig

PROMPT = 16
PATH = 0
ROUTED = (128, 512, 1024)  # lengths of prompts
ROUTED_AT_ONCE = (1, 8)  # of them
TIE = 1e-4
SIDES = (1, 2, 4, 8, 16)  # of grids
FIRST_TURN, SECOND_TURN = 700, 24  # tokens of a chat
HOME = Path(__file__).parents[1]


class Answer(NamedTuple):
    """What one client got."""

    text: str
    num_tokens: int
    first_seconds: float  # from request to first text


async def complete(address: tuple[str, int], prompt: list[int], options, model: str) -> Answer:
    """One streamed completion, by a client as thin as can be."""
    body = {
        "model": model,
        "prompt": [prompt],
        "path": PATH,
        "max_tokens": options.new_tokens,
        "ignore_eos": True,  # all have equal work
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    started = time.perf_counter()
    reader, writer = await send(address, "POST /v1/completions", data)
    text, num_tokens, first_seconds = "", 0, 0.0
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len("data: ") :])
        for choice in event["choices"]:
            text += choice["text"]
            first_seconds = first_seconds or time.perf_counter() - started
        if event.get("usage"):
            num_tokens = event["usage"]["completion_tokens"]
    writer.close()
    if not num_tokens:
        raise SystemExit("the server broke off")
    return Answer(text, num_tokens, first_seconds)


def check_texts(theirs: Theirs, tokenizer, prompts, told: list[Answer], their_tokens) -> int:
    """How many rows parted at a tie. Exits where one parted without."""
    ties = 0
    for prompt, ours, other in zip(prompts, told, their_tokens, strict=True):
        other = other[: ours.num_tokens]
        if ours.text == tokenizer.decode(other.tolist()):
            continue
        gap = theirs.smallest_gap(prompt, other)
        print(f"  a row parted; the two largest logits come as near as {gap:.1e}")
        if gap >= TIE:
            raise SystemExit(f"the texts differ: {ours.text!r} and {tokenizer.decode(other)!r}")
        ties += 1
    return ties


def routing_seconds(folder: Path) -> Generator[tuple[int, dict[int, float], float]]:
    """For each length: it, seconds to route a prompt of it by how many come at once, and seconds
    to read it. The model is taken to have a context for the longest one: its speed does not depend
    on how far it was trained.
    """
    import jax

    from dipaco.model.inference import prepare
    from dipaco.runs.opening import reading
    from dipaco.serving.decoding.decode import make_pool, prefill
    from dipaco.serving.dispatch import Dispatcher
    from dipaco.serving.warm_up import WarmUp

    with reading(folder) as run, ThreadPoolExecutor(max(ROUTED_AT_ONCE)) as threads:
        release = run.ledger.facts.release("modular", None)
        config = dataclasses.replace(run.config.model, max_length=max(ROUTED))
        dispatcher = Dispatcher(run, release)
        WarmUp().run(dispatcher.programs())
        prepared = prepare(config, run.path_of(release, PATH))
        pool = make_pool(config, 1)

        def route(prompts: np.ndarray) -> None:
            list(threads.map(lambda prompt: dispatcher.route(prompt, release), prompts))

        for length in ROUTED:
            routing = {number: [] for number in ROUTED_AT_ONCE}
            prefill_seconds = []
            rng = np.random.default_rng(length)
            for _ in range(30):
                for number in ROUTED_AT_ONCE:
                    prompts = rng.integers(0, config.vocab_size, (number, length), np.int32)
                    routing[number].append(seconds(lambda: route(prompts)) / number)  # noqa: B023
                started = time.perf_counter()
                pool = jax.block_until_ready(
                    prefill(config, prepared, pool, prompts[:1], np.zeros(1, np.int32))
                )
                prefill_seconds.append(time.perf_counter() - started)
            medians = {number: statistics.median(all_[5:]) for number, all_ in routing.items()}
            yield length, medians, statistics.median(prefill_seconds[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="that is served; none = one made for this")
    parser.add_argument(
        "--pairs", type=at_least_one, default=20, help="of runs, for each concurrency (20)"
    )
    parser.add_argument("--new-tokens", type=at_least_one, default=64, help="of each request (64)")
    parser.add_argument(
        "--memory-tokens",
        type=at_least_one,
        default=NEW_TOKENS,
        help=f"of each request with memory for some paths ({NEW_TOKENS}), but for mixed lengths",
    )
    parser.add_argument("--concurrent", type=at_least_one, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--only",
        choices=["one-path", "paths", "memory", "cold"],
        help="a part; memory: of `paths`, that with memory for some; cold: of `paths`, that with a "
        "path that is read for long; none = all",
    )
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
    parser.add_argument(
        "--devices", type=at_least_one, default=2, help="over which `paths` spreads them, too (2)"
    )
    options = parser.parse_args()
    if options.memory_tokens > (most := model_of_many_paths().max_length - PROMPT):
        parser.error(f"--memory-tokens {options.memory_tokens}: the context has room for {most}")
    result: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.only in (None, "one-path"):
            folder = options.run
            if folder is None:
                folder = scratch / "run"
                make_run(folder)
            result |= bench(folder, options, stack)
        if options.only != "one-path":
            from dipaco.launch.devices import make_cpu_devices

            if options.only is not None:  # one path is measured with the CPU as it comes
                make_cpu_devices(options.devices)
            result |= bench_paths(scratch, options)
    print(json.dumps(result))


def model_of_many_paths() -> "ModelConfig":
    """The sizes of each."""
    from dipaco.overrides import load_config

    return load_config(HOME / "configs" / "quickstart.py").model


def bench_paths(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What many paths cost, as entries of the last line."""
    import jax

    model, rounds = model_of_many_paths(), options.rounds

    def with_memory_for_some(rounds: int) -> dict[str, float]:
        return memory_for_some(model, SIDES[-1], scratch, rounds, options.memory_tokens)

    if options.only == "memory":
        return {"paths_256_memory_for_64": with_memory_for_some(rounds)}
    if options.only == "cold":
        return {"first_token_ms_of_a_warm_path": warm_beside_cold(model, scratch)}
    devices = min(options.devices, jax.local_device_count())
    sides = SIDES if options.sides is None else (1, *(side for side in options.sides if side > 1))
    draw = at_random if options.at_random else lambda number, paths, seed: evenly(number, paths)
    rows = rows_on_paths(model, scratch, rounds, sides, devices, draw)
    if options.at_random:
        rows = {f"{name}_at_random": rates for name, rates in rows.items()}
    if options.sides is not None:
        return rows
    return {
        **rows,
        "paths_256_memory_for_64": with_memory_for_some(max(1, rounds // 2)),
        "first_token_ms_of_a_warm_path": warm_beside_cold(model, scratch),
        "second_turn": second_turn(model, scratch, rounds),
    }


class Served(NamedTuple):
    """How the paths of a grid are served."""

    side: int
    num_devices: int
    is_together: bool


def rows_on_paths(
    model: "ModelConfig",
    scratch: Path,
    rounds: int,
    sides: tuple[int, ...],
    num_devices: int,
    draw: Callable[[int, int, int], list[int]],
) -> dict[str, dict[str, int]]:
    """Tokens a second of 64 rows, by the number of paths that `draw` (rows, paths, seed) spreads
    them over: on one device, and on several if there are. A server takes the sooner of the two
    ways, which it has timed.
    """
    numbers = sorted({1, num_devices})
    one_path = Served(1, 1, False)
    print("paths   devices   tok/s, together   in turn   together / in turn [95 %]   sooner / one")
    told: dict[int, dict[str, int]] = {number: {} for number in numbers}
    for side in sides:
        ways = [one_path]
        if side > 1:
            ways += [Served(side, number, way) for number in numbers for way in (True, False)]
        rates = _rates_of(ways, model, scratch, rounds, draw)
        median = lambda way: statistics.median(rates[way])  # noqa: B023, E731
        if side == 1:
            told[1]["1"] = round(median(one_path))
            print(f"    1         1{median(one_path):33.0f}", flush=True)
            continue
        for number in numbers:
            both = Served(side, number, True), Served(side, number, False)
            ratios = [a / b for a, b in zip(*(rates[way] for way in both), strict=True)]
            ratio, low, high = median_and_interval(ratios)
            sooner = max(both, key=median)
            to_one = [a / b for a, b in zip(rates[sooner], rates[one_path], strict=True)]
            told[number][str(side**2)] = round(median(sooner))
            print(
                f"{side**2:5}  {number:8}  {median(both[0]):16.0f}  {median(both[1]):8.0f}"
                f"  {ratio:13.2f} [{low:.2f}, {high:.2f}]  {statistics.median(to_one):14.2f}",
                flush=True,
            )
    name = lambda number: "rows_64_on_paths" + (f"_{number}_devices" if number > 1 else "")  # noqa: E731
    return {name(number): rates for number, rates in told.items()}


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
            num_devices=way.num_devices,
            always_together=way.is_together,
        )
        for way in ways
    }
    rates: dict[Served, list[float]] = {way: [] for way in ways}
    for engine in engines.values():
        loads = {tuple(draw(ROWS, engine.num_paths, each)) for each in range(rounds)}
        for paths in loads:  # compiles what the rounds need
            engine.decode_seconds(paths, NEW_TOKENS)
    for each in range(rounds):
        for way, engine in engines.items():
            paths = draw(ROWS, engine.num_paths, each)
            rates[way].append(ROWS * NEW_TOKENS / engine.decode_seconds(paths, NEW_TOKENS))
    engines.clear()
    jax.clear_caches()  # of all sides they would be more programs than a process may map
    return rates


def second_turn(model: "ModelConfig", scratch: Path, rounds: int) -> float:
    """Seconds to the first tokens of a second turn, as a share of those where all is read."""
    model = dataclasses.replace(model, max_length=1024)
    engine = ManyPaths(model, square(model, 2), scratch / "turns")
    ratios, rng = [], np.random.default_rng(0)
    for each in range(rounds + 1):
        first = rng.integers(1, model.vocab_size, FIRST_TURN).tolist()
        _, answer = engine.first_token_seconds(first, path=0)
        second = [*first, *answer, *rng.integers(1, model.vocab_size, SECOND_TURN).tolist()]
        cached, _ = engine.first_token_seconds(second, path=0)
        whole, _ = engine.first_token_seconds(second, path=3)
        if each:
            ratios.append(cached / whole)
    median, low, high = median_and_interval(ratios)
    print(
        f"first tokens of a second turn of {SECOND_TURN} tokens after {FIRST_TURN}: "
        f"{median:.2f} [{low:.2f}, {high:.2f}] of reading all"
    )
    return round(median, 3)


def bench(folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Any]:
    """One path against `transformers`, and routing, as entries of the last line."""
    from dipaco.model.huggingface import export_checkpoint
    from dipaco.runs.opening import reading

    exported = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "path"
    with reading(folder) as run:
        config, name, tokenizer = run.config.model, run.config.name, run.corpus.tokenizer()
        parts = run.path_of(run.ledger.facts.release("modular", None), PATH)
        export_checkpoint(config, parts, run.corpus.tokenizer_file, exported)
    theirs = Theirs(exported)
    address = stack.enter_context(serving(folder))

    async def ask_all(prompts):
        asked = (complete(address, prompt, options, name) for prompt in prompts.tolist())
        return await asyncio.gather(*asked)

    result = {"tokens_per_second": {}, "ratio_to_transformers": {}, "time_to_first_token_ms": {}}
    head = "requests  ours tok/s  transformers tok/s      ours / theirs [95 %]   first token ms"
    print(head, flush=True)
    for number in options.concurrent:
        rng = np.random.default_rng(number)
        draw = lambda: rng.integers(1, config.vocab_size, (number, PROMPT), np.int32)  # noqa: B023, E731
        threads = theirs.choose_threads(lambda: theirs.generate(draw(), options.new_tokens))  # noqa: B023
        asyncio.run(ask_all(draw()))
        ratios, rates, their_rates, firsts, ties = [], [], [], [], 0
        for _ in range(options.pairs):
            prompts = draw()
            started = time.perf_counter()
            told = asyncio.run(ask_all(prompts))
            our_rate = sum(each.num_tokens for each in told) / (time.perf_counter() - started)
            started = time.perf_counter()
            their_tokens = theirs.generate(prompts, options.new_tokens)
            their_rate = their_tokens.size / (time.perf_counter() - started)
            ties += check_texts(theirs, tokenizer, prompts, told, their_tokens)
            ratios.append(our_rate / their_rate)
            rates.append(our_rate)
            their_rates.append(their_rate)
            firsts += [1000 * each.first_seconds for each in told]
        median, low, high = median_and_interval(ratios)
        print(
            f"{number:8}  {statistics.median(rates):10.0f}  {statistics.median(their_rates):12.0f}"
            f" ({threads} threads)  {median:6.2f} [{low:.2f}, {high:.2f}]"
            f"  {statistics.median(firsts):8.1f}   {ties} ties",
            flush=True,
        )
        result["tokens_per_second"][str(number)] = round(statistics.median(rates))
        result["ratio_to_transformers"][str(number)] = round(median, 3)
        result["time_to_first_token_ms"][str(number)] = round(statistics.median(firsts), 1)
    result["routing_share"] = {str(number): {} for number in ROUTED_AT_ONCE}
    for length, route_seconds, read_seconds in routing_seconds(folder):
        print(f"reading a prompt of {length} tokens takes {1000 * read_seconds:.1f} ms;")
        for number, a_prompt_seconds in route_seconds.items():
            share = a_prompt_seconds / read_seconds
            result["routing_share"][str(number)][str(length)] = round(share, 3)
            print(f"  routing it, {number} at once, {1000 * a_prompt_seconds:.1f} ms: {share:.1%}")
    return result


if __name__ == "__main__":
    main()
