"""Loads of many paths, some of which must be read first."""

import statistics
from pathlib import Path

import numpy as np
from support.many_paths import (
    ROWS,
    ManyPaths,
    alike,
    evenly,
    mixed,
    skewed,
    square,
    square_with_embeddings,
)

from dipaco.model.config import ModelConfig
from dipaco.serving.warm_up import keep_what_there_is

NEW_TOKENS = 32  # of a request
COLD_SECONDS = 10.0  # that a path takes to read
WARM_CLIENTS = 8  # that ask for another one meanwhile


def memory_for_some(
    model: ModelConfig,
    side: int,
    scratch: Path,
    rounds: int,
    new_tokens: int,
    num_fitting: int = ROWS,
) -> dict[str, float]:
    """Tokens a second with memory for some paths, as a share of those with memory for all; and in
    how many milliseconds 95 % of first tokens come. Clients ask for every path equally often, in
    proportion to 1 / rank, and so with lengths that are mixed.
    """
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
            keep_what_there_is()  # as the server does at its start
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


def warm_beside_cold(model: ModelConfig, scratch: Path) -> dict[str, dict[str, float]]:
    """In how many milliseconds the first tokens of a path in memory come, alone and while another
    path is read for `COLD_SECONDS`.
    """
    topology = square(model, 2)
    engine = ManyPaths(model, topology, scratch / "cold")
    engine.compile()
    warm, cold = 0, topology.num_paths - 1  # which share no module
    ask = lambda number: alike([warm] * number, NEW_TOKENS)  # noqa: E731
    engine.load(ask(10 * WARM_CLIENTS), WARM_CLIENTS)
    alone = engine.load(ask(50 * WARM_CLIENTS), WARM_CLIENTS)
    # About twice as many as end while the path is read.
    number = round(2 * COLD_SECONDS * alone.tokens_per_second / NEW_TOKENS)
    engine.read_slowly(COLD_SECONDS / len(topology.modules_of(cold)))
    # The last ones are asked for first: the cold path comes when the others are being answered.
    asked = [*ask(number), *alike([cold], NEW_TOKENS), *ask(2 * WARM_CLIENTS)]
    seconds = engine.load(asked, WARM_CLIENTS + 1).first_token_seconds
    engine.stop()
    at = seconds.index(max(seconds))  # of the cold path; those that waited for it come behind it
    beside = [*seconds[:at], *seconds[at + 1 : at + 1 + WARM_CLIENTS]]
    found = {}
    for name, firsts in (("alone", alone.first_token_seconds), ("beside", beside)):
        firsts_ms = 1000 * np.array(firsts)
        found[name] = {
            "median": round(float(np.median(firsts_ms)), 1),
            "p95": round(float(np.percentile(firsts_ms, 95)), 1),
            "most": round(float(firsts_ms.max()), 1),
        }
        told = ", ".join(f"{which} {ms} ms" for which, ms in found[name].items())
        print(f"a path in memory, {name}: {len(firsts)} first tokens, {told}", flush=True)
    return found
