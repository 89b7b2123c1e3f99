"""Many streaming clients at once against `dipaco serve`: errors, memory, first tokens, 429s.

    python tools/load_serve.py --run runs/quickstart --clients 200 --seconds 60
    python tools/load_serve.py --run runs/quickstart --clients 32 --requests 100000 --most-tokens 4

Starts a server, and clients that each ask for one completion after another: prompts of random
lengths cut from the run's own documents, 8 to `--most-tokens` tokens, greedy or drawn, one in
twenty hung up on in mid-stream. A client that gets 429 comes again after its `Retry-After`. With
`--requests` it goes on until so many were answered, and no two are alike: one in ten has a random
number before its prompt, one in fifty a new schema, one in twenty is not streamed, and one in fifty
is wrong, in one of several ways. Prints what was answered, how the server's memory grew after the
first quarter, and ends with one JSON line. An answer but 200 and 429 (400 and 404 to the wrong
ones), a stream that breaks off, or rows left over make it exit with 1.
"""

import argparse
import asyncio
import collections
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from support.command_line import parser_of
from support.serve_process import serving

HANG_UP_SHARE = 0.05
WRONG = (
    {"model": "no such model"},
    {"max_tokens": -1},
    {"temperature": "hot"},
    {"logit_bias": {"x": 1}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}},
)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Tally:
    """Everything that the clients have seen."""

    def __init__(self) -> None:
        self.answers: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.first_seconds: list[float] = []
        self.num_tokens = 0
        self.resident_bytes: list[int] = []
        self.num_answered: list[int] = []  # beside each of those

    @property
    def num_asked(self) -> int:
        return self.answers.total() - self.answers["hung up"]


def request(rng: random.Random, texts: list[str], model: str, most_tokens: int) -> dict:
    """One completion to ask for."""
    text = rng.choice(texts)
    return {
        "model": model,
        "prompt": text[: rng.randint(4, max(5, min(200, len(text))))],
        "max_tokens": rng.randint(min(8, most_tokens), most_tokens),
        "temperature": rng.choice([0, 0.8]),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def varied(body: dict, rng: random.Random) -> tuple[dict, bool]:
    """A request unlike all others, and whether it is wrong."""
    kind = rng.random()
    if kind < 0.1:
        return body | {"prompt": f"{rng.getrandbits(64):x} {body['prompt']}"}, False
    if kind < 0.12:
        properties = {f"field_{rng.getrandbits(32):x}": {"enum": ["yes", "no"]}}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        format = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
        return body | {"response_format": format}, False
    if kind < 0.17:
        return {name: body[name] for name in body if not name.startswith("stream")}, False
    return (body | rng.choice(WRONG), True) if kind < 0.19 else (body, False)


async def client(
    port: int, texts: list[str], model: str, options: argparse.Namespace, tally: Tally, seed: int
) -> None:
    """One after another until there were enough."""
    rng = random.Random(seed)
    until = time.monotonic() + options.seconds
    while tally.num_asked < options.requests if options.requests else time.monotonic() < until:
        body, is_wrong = request(rng, texts, model, options.most_tokens), False
        if options.requests:
            body, is_wrong = varied(body, rng)
        try:
            hangs_up = body.get("stream", False) and rng.random() < HANG_UP_SHARE
            wait_seconds = await ask(port, body, hangs_up, is_wrong, tally)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            tally.wrong.append(f"{type(error).__name__}: {error}")
            wait_seconds = 0.1
        if wait_seconds:
            await asyncio.sleep(wait_seconds)


async def send(
    address: tuple[str, int], what: str, content: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends JSON (`POST /v1/completions`) on a new connection, which the server closes after its
    answer. The caller reads the answer from its status line on.
    """
    reader, writer = await asyncio.open_connection(*address)
    head = (
        f"{what} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    return reader, writer


async def ask(port: int, body: dict, hangs_up: bool, is_wrong: bool, tally: Tally) -> float:
    """Asks for one completion and returns the seconds to wait before the next."""
    started = time.monotonic()
    content = json.dumps(body).encode()
    reader, writer = await send(("127.0.0.1", port), "POST /v1/completions", content)
    try:
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = head.split(maxsplit=2)[1]
        tally.answers[status] += 1
        if status == "429":
            return number(r"retry-after: (\d+)", head)
        if is_wrong and status in ("400", "404"):
            await reader.read()
            return 0.0
        if is_wrong or status != "200":
            tally.wrong.append(f"{status}: {(await reader.read()).decode()[:300]}")
            return 0.1
        if not body.get("stream"):
            tally.num_tokens += json.loads(await reader.read())["usage"]["completion_tokens"]
            return 0.0
        is_over, is_first = False, True
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if is_first:
                tally.first_seconds.append(time.monotonic() - started)
                is_first = False
                if hangs_up:
                    tally.answers["hung up"] += 1
                    return 0.0
            if line == b"data: [DONE]\n":
                is_over = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                tally.wrong.append(event["error"]["message"])
            elif event["usage"]:
                tally.num_tokens += event["usage"]["completion_tokens"]
        if not is_over:
            tally.wrong.append("a stream broke off")
        return 0.0
    finally:
        writer.close()


async def watch(pid: int, tally: Tally) -> None:
    """Resident memory, every second."""
    while True:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tally.resident_bytes.append(pages * PAGE_BYTES)
        tally.num_answered.append(tally.num_asked)
        await asyncio.sleep(1)


async def report(options: argparse.Namespace, tally: Tally) -> None:
    """A line in every half minute: the longest form takes a quarter of an hour."""
    while True:
        await asyncio.sleep(30)
        asked, resident = tally.num_asked, tally.resident_bytes[-1] / 1e6
        of = f" of {options.requests:,}" if options.requests else ""
        print(f"{asked:>9,}{of} requests answered, {resident:,.0f} MB", file=sys.stderr)


async def metric(port: int, name: str) -> float:
    reader, writer = await send(("127.0.0.1", port), "GET /metrics")
    text = (await reader.read()).decode()
    writer.close()
    return number(rf"(?m)^dipaco_{name} (\S+)$", text)


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in {text[:200]}"
    return float(found[1])


async def load(process: subprocess.Popen, port: int, options, texts: list[str], model: str):
    tally = Tally()
    beside = [
        asyncio.create_task(watch(process.pid, tally)),
        asyncio.create_task(report(options, tally)),
    ]
    clients = [client(port, texts, model, options, tally, i) for i in range(options.clients)]
    await asyncio.gather(*clients)
    for task in beside:
        task.cancel()
    for _ in range(100):  # The server still sweeps the last broken streams.
        left = await metric(port, "rows") + await metric(port, "waiting_requests")
        if not left:
            break
        await asyncio.sleep(0.1)
    return tally, left


def slope(at: list[int], values: list[int]) -> float:
    """The slope of the line through them, by least squares."""
    return statistics.linear_regression(at, values).slope if len(set(at)) > 1 else math.nan


def texts_of(run: Path) -> tuple[list[str], str]:
    """Some of the run's test documents, and its name."""
    from dipaco.runs.opening import reading

    with reading(run) as opened:
        numbers = opened.corpus.documents("test")[:200]
        decode = opened.corpus.tokenizer().decode
        return [decode(ids[:64]) for ids in opened.corpus.tokens(numbers)], opened.config.name


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, help="in place of seconds")
    parser.add_argument("--most-tokens", type=int, default=48, help="of an answer (48)")
    options, rest = parser.parse_known_args()  # the rest goes to `dipaco serve`
    texts, model = texts_of(options.run)
    with serving(options.run, *rest) as (process, _, port):
        started = time.monotonic()
        tally, left = asyncio.run(load(process, port, options, texts, model))
        seconds = time.monotonic() - started

    after_first_quarter = len(tally.resident_bytes) // 4
    quarter = tally.resident_bytes[after_first_quarter:]
    first_ms = sorted(1000 * seconds for seconds in tally.first_seconds)
    result = {
        "clients": options.clients,
        "seconds": seconds,
        "requests": tally.num_asked,
        "answers": dict(sorted(tally.answers.items())),
        "wrong": len(tally.wrong),
        "tokens_per_second": tally.num_tokens / seconds,
        "time_to_first_token_ms": {
            "median": statistics.median(first_ms),
            "p95": first_ms[int(0.95 * (len(first_ms) - 1))],
        },
        "resident_mb": {"first quarter": quarter[0] / 1e6, "end": quarter[-1] / 1e6},
        "bytes_per_request_after_first_quarter": slope(
            tally.num_answered[after_first_quarter:], quarter
        ),
        "left_over": left,
        "exit_code": process.returncode,
    }
    for name, value in result.items():
        print(f"{name:>24}  {value}")
    for problem, number in collections.Counter(tally.wrong).most_common(5):
        print(f"{number:>6} x {problem}")
    print(json.dumps(result))
    return 1 if tally.wrong or left or process.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
