"""Servers side by side: the same prompts to each in turn, round by round, and a table of them."""

import contextlib
import json
import statistics
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rivals.load_generator import Load, LoadFailed, LoadGenerator, Request
from rivals.peers import Peer
from rivals.server_process import ServerFailed, ServerProcess
from support.rounds import Ratio, ratio_of
from support.servers import free_port

GREEDY_TOKENS = 24  # length of a compared text
ANSWER_SECONDS = 300


class Running(NamedTuple):
    """A server that answers. It is held while others are measured."""

    peer: Peer
    process: ServerProcess
    threads: int

    @contextlib.contextmanager
    def going_on(self) -> Generator[None]:
        self.process.go_on()
        try:
            yield
        finally:
            self.process.hold()


class Measured(NamedTuple):
    """A load, and what it cost the server."""

    load: Load
    tokens_per_cpu_second: float  # All its processes count, and so do the requests that warm up.


class Text(NamedTuple):
    """A greedy continuation."""

    text: str
    prompt_tokens: int


def start(peer: Peer, threads: int, folder: Path, limit_seconds: float) -> Running:
    """Starts a server, and holds it when it is ready. Raises `ServerFailed`."""
    port = free_port()
    log = folder / f"{peer.name.replace(' ', '_')}_{threads}.log"
    url = f"http://127.0.0.1:{port}"
    process = ServerProcess(
        peer.words(port, threads), peer.variables(threads), url, peer.ready, log
    )
    try:
        process.wait_until_ready(limit_seconds)
    except BaseException:
        process.stop()
        raise
    process.hold()
    return Running(peer, process, threads)


def complete(url: str, model: str, request: Request) -> Text:
    """One greedy completion, not streamed.

    Raises:
      ServerFailed: the server does not answer, or refuses.
    """
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": GREEDY_TOKENS,
        "temperature": 0,
        **request.fields,
    }
    asked = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as answer:
            told = json.load(answer)
        return Text(told["choices"][0]["text"], told["usage"]["prompt_tokens"])
    except urllib.error.HTTPError as error:
        why = error.read(500).decode(errors="replace")
        raise ServerFailed(f"it answers a completion with {error.code}: {why}") from error
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerFailed(f"it does not answer a completion: {error!r}") from error


def same_texts(ours: Running, theirs: Running, prompts: Sequence[str], num_paths: int) -> int:
    """Asks both for greedy continuations, prompt i of path i, and counts equal ones.

    Raises:
      ServerFailed: prompts have other tokens there, or no text is the same: another model.
    """
    same = 0
    for number, prompt in enumerate(prompts):
        texts = []
        for running in (ours, theirs):
            request = running.peer.request(prompt, number % num_paths)
            with running.going_on():
                texts.append(complete(running.process.url, running.peer.model, request))
        if texts[0].prompt_tokens != texts[1].prompt_tokens:
            raise ServerFailed(
                f"it reads {texts[1].prompt_tokens} tokens of a prompt of {texts[0].prompt_tokens}"
            )
        same += texts[0].text == texts[1].text
    if not same:
        raise ServerFailed(f"none of {len(prompts)} greedy texts is ours: it has another model")
    return same


class Contest:
    """Servers that are asked in turn, ours first.

    Args:
      running: the servers.
      generator: makes the loads.
      num_paths: paths to which the requests of a load go in turn.
      draw: number -> so many prompts, none given before.
    """

    def __init__(
        self,
        running: Sequence[Running],
        generator: LoadGenerator,
        num_paths: int,
        draw: Callable[[int], Sequence[str]],
    ):
        self._running, self._generator = list(running), generator
        self._num_paths, self._draw = num_paths, draw
        self.left_out: dict[str, str] = {}  # name of a failed server -> reason

    def ask(self, running: Running, prompts: Sequence[str], at_once: int) -> Measured:
        """One load. Raises `LoadFailed`."""
        requests = [
            running.peer.request(prompt, number % self._num_paths)
            for number, prompt in enumerate(prompts)
        ]
        with running.going_on():
            before = running.process.cpu_seconds()
            load = self._generator.ask(running.process.url, running.peer.model, requests, at_once)
            cpu_seconds = running.process.cpu_seconds() - before
        tokens = len(requests) * self._generator.new_tokens
        return Measured(load, tokens / max(cpu_seconds, 0.01))

    def rounds(self, at_once: int, num_requests: int, number: int) -> dict[str, list[Measured]]:
        """Loads of each server, a round after another, beginning with another. One that fails is
        not asked again.

        Raises:
          LoadFailed: ours failed.
        """
        loads: dict[str, list[Measured]] = {running.peer.name: [] for running in self._running}
        ours = self._running[0].peer.name
        for each in range(number):
            prompts = self._draw(at_once + num_requests)
            turn = each % len(self._running)
            for running in [*self._running[turn:], *self._running[:turn]]:
                name = running.peer.name
                if name in self.left_out:
                    continue
                try:
                    loads[name].append(self.ask(running, prompts, at_once))
                except LoadFailed as error:
                    if name == ours:
                        raise
                    self.left_out[name] = str(error)
        return {name: own for name, own in loads.items() if name not in self.left_out}


def summary(loads: Mapping[str, Sequence[Measured]]) -> dict[str, dict[str, Any]]:
    """Medians over rounds for each server: tokens a second, tokens per second of processor time,
    and milliseconds to the first token. All but the first also have ours / theirs of both speeds,
    with intervals.
    """
    ours = next(iter(loads.values()))
    told: dict[str, dict[str, Any]] = {}
    for name, own in loads.items():
        firsts = [each.load.first_token_ms for each in own]
        told[name] = {
            "tokens_per_second": round(statistics.median(map(_rate, own)), 1),
            "tokens_per_cpu_second": round(statistics.median(map(_cpu_rate, own)), 1),
            "first_token_ms": {
                str(percent): round(statistics.median(first[percent] for first in firsts), 1)
                for percent in (50, 95)
            },
        }
        if own is not ours:
            for key, rate in (("ours_to_theirs", _rate), ("ours_to_theirs_cpu", _cpu_rate)):
                ratio = ratio_of(list(map(rate, ours)), list(map(rate, own)))
                told[name][key] = [round(value, 3) for value in ratio]
    return told


def _rate(measured: Measured) -> float:
    return measured.load.tokens_per_second


def _cpu_rate(measured: Measured) -> float:
    return measured.tokens_per_cpu_second


HEAD = (
    "paths  at once  server                threads  tokens/s  ours / theirs [95 %]  tokens/CPU s"
    "  ours / theirs [95 %]  first token: p50   p95 ms"
)


def lines(
    num_paths: int, at_once: int, told: Mapping[str, Mapping[str, Any]], threads: Mapping[str, int]
) -> list[str]:
    """Lines of the table, one for each server."""
    out = []
    for name, own in told.items():
        first = own["first_token_ms"]
        out.append(
            f"{num_paths:5}  {at_once:7}  {name:20}  {threads.get(name) or '':>7}  "
            f"{own['tokens_per_second']:8.0f}  {_shown(own.get('ours_to_theirs')):>20}  "
            f"{own['tokens_per_cpu_second']:12.0f}  {_shown(own.get('ours_to_theirs_cpu')):>20}  "
            f"{first['50']:16.0f} {first['95']:8.0f}"
        )
    return out


def _shown(ratio: Sequence[float] | None) -> str:
    return "" if ratio is None else str(Ratio(*ratio))
