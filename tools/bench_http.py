"""Tokens a second of `dipaco serve` over HTTP, with rows on one path and on many.

    python tools/bench_http.py --run RUN
    python tools/bench_http.py --run RUN --beside http://127.0.0.1:8101

Serves a run in a process of its own and asks it for 64 greedy completions at once, of 96 tokens
after 16 random ones, each of a path in turn, until all are answered: parsing, prefill and decoding,
and this client. With `--beside` other servers, of an older program say, are asked for the same in
turn; a ratio is of tokens a second, the median over the rounds with a 95 % interval.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

from support.paired_ratio import median_and_interval
from support.serve_process import serving
from support.thin_client import send

ROWS = 64
PROMPT_TOKENS, NEW_TOKENS = 16, 96
Address = tuple[str, int]


async def complete(address: Address, model: str, path: int, prompt: list[int]) -> int:
    """Asks for one completion on a path; returns how many tokens it has."""
    body = {"model": model, "prompt": prompt, "path": path}
    body |= {"max_tokens": NEW_TOKENS, "temperature": 0}
    answer = await ask(address, "POST /v1/completions", json.dumps(body).encode())
    return answer["usage"]["completion_tokens"]


async def ask(address: Address, what: str, content: bytes = b"") -> dict:
    """The JSON that a server answers."""
    reader, writer = await send(address, what, content)
    head, _, text = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    status = head.split(maxsplit=2)[1]
    if status != "200":
        raise SystemExit(f"{what} was answered {status}: {text}")
    return json.loads(text)


async def tokens_per_second(address: Address, model: str, num_paths: int, seed: int) -> float:
    """Of `ROWS` completions at once."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(1, 256) for _ in range(PROMPT_TOKENS)] for _ in range(ROWS)]
    started = time.perf_counter()
    made = await asyncio.gather(
        *(complete(address, model, row % num_paths, prompt) for row, prompt in enumerate(prompts))
    )
    return sum(made) / (time.perf_counter() - started)


async def compare(addresses: list[Address], rounds: int) -> None:
    """Asks all servers in turn, with rows on one path and on as many as there are."""
    models = [(await ask(address, "GET /v1/models"))["data"][0] for address in addresses]
    most = min(ROWS, *(model["dipaco"]["num_paths"] for model in models))
    seed = 0
    for num_paths in (most, 1):
        rates: list[list[float]] = [[] for _ in addresses]
        for number in range(rounds + 1):
            seed += 1
            turns = list(range(len(addresses)))
            for each in turns[number % len(turns) :] + turns[: number % len(turns)]:
                rate = await tokens_per_second(addresses[each], models[each]["id"], num_paths, seed)
                if number:  # the first reads the paths
                    rates[each].append(rate)
        print(f"{ROWS} rows on {num_paths} paths: {statistics.median(rates[0]):,.0f} tokens/s")
        for address, theirs in zip(addresses[1:], rates[1:], strict=True):
            ratios = [ours / other for ours, other in zip(rates[0], theirs, strict=True)]
            ratio, low, high = median_and_interval(ratios)
            print(
                f"  {address[0]}:{address[1]}: {statistics.median(theirs):,.0f} tokens/s, "
                f"ours / theirs {ratio:.2f} [{low:.2f}, {high:.2f}]",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="a finished run, which is served")
    parser.add_argument("--beside", nargs="*", default=[], metavar="URL", help="other servers")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    others = []
    for url in options.beside:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            parser.error(f"{url} is no address as http://127.0.0.1:8101")
        others.append((parts.hostname, parts.port))
    with serving(options.run) as address:
        asyncio.run(compare([address, *others], options.rounds))


if __name__ == "__main__":
    main()
