"""Hostile clients against `dipaco serve`: what another client waits, and what the server keeps.

    python tools/attack_serve.py --run runs/quickstart --minutes 5
    python tools/attack_serve.py --run runs/quickstart --rows schema,ids --minutes 1

Starts a server with two API keys. The victim asks for four tokens again and again, alone and while
a hostile client does one of `ROWS` with the other key. Prints for each row the victim's median time
to the first token, quiet and attacked, its answers other than 200, what the attacker was answered,
and how the server's memory grew. At last the server gets SIGTERM in the middle of an attack.

Ends with one JSON line, and with 1 if a first token took more than `MOST_TIMES` its quiet median,
the victim was refused, memory grew by more than `MOST_GROWTH`, or the process stayed.
"""

import argparse
import asyncio
import collections
import contextlib
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from support.command_line import parser_of
from support.serve_process import Serving, serving
from support.servers import free_port

MOST_TIMES = 2.0
MOST_GROWTH = 96 << 20  # bytes in a row, over the first round of its attack
DRAIN_SECONDS, GRACE_SECONDS = 5, 10  # the server's, and how much later its process may end
VICTIM, HOSTILE = ({"Authorization": f"Bearer {name}"} for name in ("victim", "hostile"))
IDS = b"[" + b"1," * 2_000_000 + b"1]"
BETWEEN_SECONDS = 0.02  # between two requests of the victim


class Attack:
    """A hostile client.

    Attributes:
      answers: how often it had each status.
    """

    def __init__(
        self, server: Serving, session: aiohttp.ClientSession, model: str, dashboard_port: int
    ):
        self._server, self._session, self._model = server, session, model
        self._dashboard_port = dashboard_port
        self.answers: collections.Counter[str] = collections.Counter()
        self._number = itertools.count()  # no schema is one that was tried before

    async def post(self, **more: Any) -> None:
        """Asks for a completion, and leaves after 3 s."""
        body = {"model": self._model, "prompt": "a", "max_tokens": 1} | more
        await self._ask("POST", "/v1/completions", json=body)

    def _format(self, schema: dict) -> dict:
        schema = schema | {"title": str(next(self._number))}
        return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}

    async def schema(self) -> None:
        """A schema that compiles without end."""
        patterns = [{"pattern": f"^(a|b)*a(a|b){{{k}}}$"} for k in range(8, 23)]
        await self.post(response_format=self._format({"type": "string", "allOf": patterns}))

    async def constant(self) -> None:
        """Texts that are known before they are made."""
        for schema in ({"type": "string", "pattern": "^a{60000}$"}, {"const": "a" * 50_000}):
            await self.post(response_format=self._format(schema), n=64)

    async def corpus(self) -> None:
        """The training text, and the page as another site's."""
        for path in ("/dashboard/", "/dashboard/texts"):
            await self._ask("GET", path, expected=404)
        await self._ask("GET", "/v1/models", expected=403, headers={"Host": "evil.example"})

    async def streams(self) -> None:
        """Sixty streams of the dashboard at once, and twenty tables of the training text."""
        ask = functools.partial(self._ask, "GET", port=self._dashboard_port)
        await asyncio.gather(
            *(ask("/changes") for _ in range(60)),
            *(ask("/texts") for _ in range(20)),
        )

    async def ids(self) -> None:
        """Four megabytes of token ids, and headers of a hundred kilobytes."""
        kind = {"Content-Type": "application/json"}
        body = json.dumps({"model": self._model, "prompt": 0}).encode()
        body = body.replace(b"0", IDS)
        await self._ask("POST", "/v1/completions", data=body, headers=kind)
        await self._ask("GET", "/v1/models", expected=400, headers={"X-Large": "a" * 100_000})

    async def halves(self) -> None:
        """A hundred requests of which the rest never comes."""
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    place = self._server.host, self._server.port
                    _, writer = await asyncio.open_connection(*place)
                    stack.callback(writer.close)
                    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-")
            await asyncio.sleep(1)

    async def _ask(
        self,
        method: str,
        path: str,
        expected: int | None = None,
        headers: dict[str, str] | None = None,
        port: int | None = None,
        **more: Any,
    ) -> None:
        status, url = "left", f"http://{self._server.host}:{port or self._server.port}{path}"
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with (
                asyncio.timeout(3),
                self._session.request(
                    method, url, headers=HOSTILE | (headers or {}), **more
                ) as answer,
            ):
                status = str(answer.status)
                if expected not in (None, answer.status):
                    status = f"{path} is open: {status}"
                await answer.read()
        self.answers[status] += 1


ROWS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    row.__name__: row
    for row in (
        *(Attack.schema, Attack.constant, Attack.corpus, Attack.streams),
        *(Attack.ids, Attack.halves),
    )
}


class Seen(NamedTuple):
    """A row of the table."""

    quiet_ms: float
    attacked_ms: float
    refused: dict[str, int]  # the victim's answers but 200
    answers: dict[str, int]  # the attacker's
    growth_bytes: int

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        found = [each for each in self.answers if "open" in each]
        if self.attacked_ms > MOST_TIMES * self.quiet_ms:
            found.append(f"first token {self.attacked_ms / self.quiet_ms:.1f} times as late")
        found += [f"the victim was refused: {self.refused}"] * bool(self.refused)
        if self.growth_bytes > MOST_GROWTH:
            found.append(f"memory grew by {self.growth_bytes >> 20} MB")
        return found


def resident_bytes(pid: int) -> int:
    """The memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * 4096 + sum(resident_bytes(int(child)) for child in children)


async def first_tokens(
    server: Serving, session: aiohttp.ClientSession, model: str, seconds: float
) -> tuple[float, dict[str, int]]:
    """The victim's median milliseconds to a first token, and its answers but 200."""
    url, taken = f"http://{server.host}:{server.port}/v1/completions", []
    refused: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        body = {"model": model, "prompt": f"And {len(taken)}", "max_tokens": 4, "stream": True}
        started = time.monotonic()
        try:
            async with session.post(url, json=body, headers=VICTIM) as answer:
                if answer.status != 200:
                    refused[str(answer.status)] += 1
                    continue
                await answer.content.readline()
                taken.append(1000 * (time.monotonic() - started))
                await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            refused[type(error).__name__] += 1
        await asyncio.sleep(BETWEEN_SECONDS)
    return statistics.median(taken or [float("inf")]), dict(refused)


@contextlib.asynccontextmanager
async def attacking(attack: Attack, row: str) -> AsyncGenerator[None]:
    """Meanwhile one attack is begun after the other."""

    async def again() -> None:
        while True:
            await ROWS[row](attack)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def attack_all(
    server: Serving, model: str, dashboard_port: int, rows: Sequence[str], seconds: float
) -> dict[str, Seen]:
    """Each row, before and during which the victim is watched for so long."""
    found = {}
    timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await first_tokens(server, session, model, 1.0)
        for row in rows:
            quiet, _ = await first_tokens(server, session, model, seconds / 3)
            attack = Attack(server, session, model, dashboard_port)
            async with attacking(attack, row):
                await asyncio.sleep(seconds / 6)  # what is made once is no growth
                before = resident_bytes(server.process.pid)
                attacked, refused = await first_tokens(server, session, model, seconds / 2)
                growth = resident_bytes(server.process.pid) - before
            found[row] = Seen(quiet, attacked, refused, dict(attack.answers), growth)
            print(_line(row, found[row]), flush=True)
        attack = Attack(server, session, model, dashboard_port)
        async with attacking(attack, rows[0]):
            await asyncio.sleep(1)
            server.process.terminate()
            await asyncio.sleep(1)
    return found


def _line(row: str, seen: Seen) -> str:
    answers = ", ".join(f"{number} x {status}" for status, number in seen.answers.items())
    problems = "; ".join(seen.problems)
    return (
        f"{row:9} {seen.quiet_ms:9.1f} {seen.attacked_ms:9.1f} {seen.growth_bytes / 2**20:8.1f}  "
        f"{answers}{'   <- ' + problems if problems else ''}"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0, help="for all rows together (3)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)} (all)")
    options: argparse.Namespace = parser.parse_args(words)
    rows = options.rows.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"--rows: there is no {unknown[0]}, but {', '.join(ROWS)}")
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("victim\nhostile\n")
        port = free_port()
        given = ("--api-key-file", str(keys), "--drain-seconds", str(DRAIN_SECONDS))
        given += ("--dashboard", str(port))
        with serving(options.run, *given) as server:
            model = _model(server)
            print("row        quiet ms  attacked  grown MB  what the attacker was answered")
            seconds = 60 * options.minutes / len(rows)
            found = asyncio.run(attack_all(server, model, port, rows, seconds))
            began = time.monotonic()
            with contextlib.suppress(Exception):
                server.process.wait(DRAIN_SECONDS + GRACE_SECONDS)
            left_seconds, code = time.monotonic() - began, server.process.poll()
            if code is None:
                server.process.kill()
    problems = [f"{row}: {each}" for row, seen in found.items() for each in seen.problems]
    if code != 0:
        problems.append(f"after SIGTERM: exit code {code}, {left_seconds:.0f} s later")
    told = {row: seen._asdict() for row, seen in found.items()}
    print(json.dumps({"rows": told, "left_seconds": round(left_seconds, 1), "problems": problems}))
    return bool(problems)


def _model(server: Serving) -> str:
    async def name() -> str:
        url = f"http://{server.host}:{server.port}/v1/models"
        async with aiohttp.ClientSession() as session, session.get(url, headers=VICTIM) as answer:
            return (await answer.json())["data"][0]["id"]

    return asyncio.run(name())


if __name__ == "__main__":
    sys.exit(main())
