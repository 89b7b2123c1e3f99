"""Many streaming clients at once against `dipaco serve`: errors, memory, first tokens, 429s.

    python tools/load_serve.py --run runs/quickstart --clients 200 --seconds 60

Starts a server of its own, and clients that each ask for one completion after another: prompts of
random lengths cut from the run's own documents, 8 to 48 tokens, greedy or drawn, one in twenty
hung up on in mid-stream. A client that gets 429 comes again after its `Retry-After`. Prints what
was answered, how the server's memory grew after the first quarter, and ends with one JSON line. Any
answer but 200 and 429, a stream that breaks off, or rows left over at the end make it exit with 1.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

HANG_UP_SHARE = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Tally:
    """What all clients have seen."""

    def __init__(self) -> None:
        self.answers: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.first_seconds: list[float] = []
        self.num_tokens = 0
        self.resident_bytes: list[int] = []


@contextlib.contextmanager
def server(run: Path, options: list[str]) -> Generator[tuple[subprocess.Popen, int]]:
    """A process, and the port that it says it listens on."""
    command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", str(run), "--port", "0"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                yield process, int(found[1])
                break
    finally:
        process.send_signal(signal.SIGTERM)
        print(process.communicate(timeout=120)[1], end="", file=sys.stderr)


async def client(port: int, texts: list[str], model: str, until: float, tally: Tally, seed: int):
    """One after another until the time is over."""
    rng = random.Random(seed)
    while time.monotonic() < until:
        text = rng.choice(texts)
        body = {
            "model": model,
            "prompt": text[: rng.randint(4, max(5, min(200, len(text))))],
            "max_tokens": rng.randint(8, 48),
            "temperature": rng.choice([0, 0.8]),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            wait_seconds = await ask(port, body, rng.random() < HANG_UP_SHARE, tally)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            tally.wrong.append(f"{type(error).__name__}: {error}")
            wait_seconds = 0.1
        if wait_seconds:
            await asyncio.sleep(wait_seconds)


async def ask(port: int, body: dict, hangs_up: bool, tally: Tally) -> float:
    """One completion; returns the seconds to wait before the next."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        content = json.dumps(body).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = head.split(maxsplit=2)[1]
        tally.answers[status] += 1
        if status == "429":
            return number(r"retry-after: (\d+)", head)
        if status != "200":
            tally.wrong.append(f"{status}: {(await reader.read()).decode()[:300]}")
            return 0.1
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


async def watch(pid: int, until: float, tally: Tally) -> None:
    """Resident memory, every second."""
    while time.monotonic() < until:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tally.resident_bytes.append(pages * PAGE_BYTES)
        await asyncio.sleep(1)


async def metric(port: int, name: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return number(rf"(?m)^dipaco_{name} (\S+)$", text)


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in {text[:200]}"
    return float(found[1])


async def load(process: subprocess.Popen, port: int, options, texts: list[str], model: str):
    tally = Tally()
    until = time.monotonic() + options.seconds
    clients = [client(port, texts, model, until, tally, i) for i in range(options.clients)]
    await asyncio.gather(watch(process.pid, until, tally), *clients)
    for _ in range(100):  # those that hung up last are still being swept
        left = await metric(port, "rows") + await metric(port, "waiting_requests")
        if not left:
            break
        await asyncio.sleep(0.1)
    return tally, left


def texts_of(run: Path) -> tuple[list[str], str]:
    """Some of the run's validation documents, and its name."""
    from dipaco.runs.opening import reading

    with reading(run) as opened:
        numbers = opened.corpus.documents("valid")[:200]
        decode = opened.corpus.tokenizer().decode
        return [decode(ids[:64]) for ids in opened.corpus.tokens(numbers)], opened.config.name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, metavar="DIR")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    options, rest = parser.parse_known_args()  # the rest goes to `dipaco serve`
    texts, model = texts_of(options.run)
    with server(options.run, rest) as (process, port):
        tally, left = asyncio.run(load(process, port, options, texts, model))

    quarter = tally.resident_bytes[len(tally.resident_bytes) // 4 :]
    first_ms = sorted(1000 * seconds for seconds in tally.first_seconds)
    result = {
        "clients": options.clients,
        "seconds": options.seconds,
        "answers": dict(sorted(tally.answers.items())),
        "wrong": len(tally.wrong),
        "tokens_per_second": tally.num_tokens / options.seconds,
        "time_to_first_token_ms": {
            "median": statistics.median(first_ms),
            "p95": first_ms[int(0.95 * (len(first_ms) - 1))],
        },
        "resident_mb": {"first quarter": quarter[0] / 1e6, "end": quarter[-1] / 1e6},
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
