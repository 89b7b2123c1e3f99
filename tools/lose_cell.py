"""A router before four cells, one of which is killed under load: is an answer lost, or another?

    python tools/lose_cell.py --run RUN --requests 2000 --at-once 16

One process answers the requests first, greedily, half of them on each path in turn, half routed.
Then the run is exported (`export --all`), whose router the four cells stand behind: each path is in
two of them. After a third of the answers a cell is killed. Every other request is streamed.

Prints how long an answer takes before and after that, and ends with one JSON line. Exits with 1 if
an answer was refused or is another text than the one process's. Only a stream of the killed cell
that had begun may break off.
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from load_serve import texts_of
from support.command_line import parser_of
from support.serve_process import serving

NUM_CELLS = 4
Texts = dict[int, str]  # of each request


class Tally:
    """Answers that have come."""

    def __init__(self) -> None:
        self.texts: Texts = {}
        self.seconds: list[float] = []  # in the order in which they came
        self.states: collections.Counter[str] = collections.Counter()


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[str, str]:
    """The state of an answer, and its text."""
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            return f"{answer.status}: {(await answer.text())[:300]}", ""
        if not body.get("stream"):
            return "whole", (await answer.json())["choices"][0]["text"]
        text = ""
        async for line in answer.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    return "broken off" if text else f"lost: {event['error']['message']}", text
                text += event["choices"][0]["text"]
    return "whole", text


async def ask_all(
    url: str, bodies: Sequence[dict[str, Any]], at_once: int, kill: tuple[int, Any] | None = None
) -> Tally:
    """Asks for everything, so many at once. `kill` is called after so many answers."""
    tally, left = Tally(), iter(enumerate(bodies))
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def client() -> None:
            for number, body in left:
                began = time.monotonic()
                state, text = await ask(session, url, body)
                tally.seconds.append(time.monotonic() - began)
                tally.states[state] += 1
                if state == "whole":
                    tally.texts[number] = text
                if kill is not None and len(tally.seconds) == kill[0]:
                    kill[1]()

        await asyncio.gather(*(client() for _ in range(at_once)))
    return tally


def bodies_of(run: Path, num_paths: int, number: int) -> list[dict[str, Any]]:
    texts, model = texts_of(run)
    bodies = []
    for n, text in zip(range(number), itertools.cycle(texts), strict=False):
        body = {"model": model, "prompt": text[: 20 + n % 40], "max_tokens": 8, "temperature": 0}
        path = {"path": n // 2 % num_paths} if n % 2 else {}
        bodies.append(body | path | ({"stream": True} if n % 4 < 2 else {}))
    return bodies


def percentile_ms(seconds: Sequence[float], share: float) -> float:
    return round(1000 * sorted(seconds)[int(share * (len(seconds) - 1))], 1)


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--rows", default="16", help="of each cell (16)")
    options: argparse.Namespace = parser.parse_args(words)
    from dipaco.runs.opening import reading

    with reading(options.run) as opened:
        num_paths = opened.config.topology.num_paths
    bodies = bodies_of(options.run, num_paths, options.requests)
    with serving(options.run, "--rows", options.rows) as (_, host, port):
        wanted = asyncio.run(ask_all(f"http://{host}:{port}", bodies, options.at_once))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        exported, file = Path(folder) / "exported", Path(folder) / "cells.json"
        command = [sys.executable, "-m", "dipaco.cli.main", "export", "--run", str(options.run)]
        subprocess.run([*command, "--all", "--out", str(exported)], check=True)
        half = num_paths // 2
        halves = [f"0-{half - 1}", f"{half}-{num_paths - 1}"] * (NUM_CELLS // 2)
        cells = [
            stack.enter_context(serving(options.run, "--rows", options.rows, "--paths", paths))
            for paths in halves
        ]
        upstreams: dict[str, Any] = {"router": str(exported / "router.json")}
        for paths, cell in zip(halves, cells, strict=True):
            target = {"url": f"http://{cell.host}:{cell.port}"}
            upstreams.setdefault(paths, []).append(target)
        file.write_text(json.dumps(upstreams))
        router = stack.enter_context(serving(options.run, "--upstream", str(file)))
        kill = options.requests // 3, cells[0].process.kill
        url = f"http://{router.host}:{router.port}"
        found = asyncio.run(ask_all(url, bodies, options.at_once, kill))
    others = sum(text != wanted.texts[number] for number, text in found.texts.items())
    lost = found.states.total() - found.states["whole"] - found.states["broken off"]
    result = {
        "paths": num_paths,
        "answers": dict(found.states),
        "lost": lost,
        "other_texts": others,
        "p99_ms": {
            "one process": percentile_ms(wanted.seconds, 0.99),
            "cells": percentile_ms(found.seconds[: kill[0]], 0.99),
            "one cell lost": percentile_ms(found.seconds[kill[0] :], 0.99),
        },
        "median_ms": {
            "one process": percentile_ms(wanted.seconds, 0.5),
            "cells": percentile_ms(found.seconds[: kill[0]], 0.5),
            "one cell lost": percentile_ms(found.seconds[kill[0] :], 0.5),
        },
    }
    print(json.dumps(result))
    return bool(lost or others or wanted.states.keys() != {"whole"})


if __name__ == "__main__":
    sys.exit(main())
