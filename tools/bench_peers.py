"""`dipaco serve` beside the servers of others on this machine: one path, then many.

    python tools/bench_peers.py --rivals-env ~/rivals
    python tools/bench_peers.py --rivals-env ~/rivals --run runs/quickstart --rounds 3
    python tools/bench_peers.py --rivals-env ~/rivals --only many-paths --paths 256 --width 128

Exports a path of a finished run and serves it four ways: this project's server, `transformers serve
--continuous-batching`, llama.cpp's `llama-server` (the path as GGUF, by llama.cpp's converter) and
vLLM's build for CPUs, all in float32. aiperf asks each of them for the same completions: real
prompts of the run's test text, 64 greedy tokens each whatever the text, streamed, with 1, 8
and 32 requests at once. All servers run side by side and are asked in turn, round by round. A
server that is not asked is held (SIGSTOP), so that it costs the others no time. Before that, each
is tried with one thread and with as many as there are cores, and keeps the better. Each must also
read a prompt as the same tokens and continue some of them as ours does.

Then many paths: the same with the requests of a load spread evenly over `--paths` paths, against
`llama-server` in its router mode, which has a process for each path. All paths are loaded before.

A ratio is ours / theirs in tokens a second, and in tokens per second of processor time of the
server's processes (which other work on the machine disturbs less), its median over the rounds with
a 95 % interval (or the least and the greatest of fewer than six). Without `--run` a run is made for
this: a square of paths, trained for two steps, of 8.39 M parameters each (`--width 128`: 1.57 M).
Rivals, aiperf among them, are installed in the folder that `--rivals-env` names, the first time
only: 4 GB, and half an hour of compiling. What cannot be installed or does not run is said, and
left out. The last line is JSON.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rivals import peers
from rivals.contest import HEAD, Contest, Running, complete, lines, same_texts, start, summary
from rivals.installed import Installed, NotInstalled
from rivals.load_generator import LoadFailed, LoadGenerator
from rivals.peers import Peer
from rivals.server_process import ServerFailed
from support.bench_run import make_run
from support.command_line import parser_of
from support.scratch import scratch

PROMPT = 16  # tokens
COMPARED = 4  # prompts whose greedy texts are compared
CONVERTER = Path(__file__).parent / "rivals" / "gguf_converter.py"
PARTS = ("one-path", "many-paths")


class Bench:
    """A finished run, its exported paths, and the measurements on them."""

    def __init__(self, run: Path, options: argparse.Namespace, folder: Path, installed: Installed):
        from dipaco.runs.opening import reading

        self._run, self._options, self._folder, self._installed = run, options, folder, installed
        with reading(run) as opened:
            self._name = opened.config.name
            self._context = opened.config.model.max_length
            self.num_paths = opened.config.plan.arm("modular").topology.num_paths
            self._prompts = _prompts(opened.corpus)
        self.left_out: dict[str, str] = {}
        self._exported: list[Path] = []

    def exported(self, number: int) -> list[Path]:
        """The folders of the first paths, written as `dipaco export` writes them."""
        from dipaco.runs.opening import reading
        from dipaco.runs.reading.export import export_path

        with reading(self._run) as opened:
            release = opened.ledger.facts.release("modular", None)
            for path in range(len(self._exported), number):
                out = self._folder / f"path_{path:04}"
                export_path(opened, release, path, out)
                self._exported.append(out)
        return self._exported[:number]

    def gguf(self, number: int) -> Path:
        """A folder with the first paths as GGUF. Raises `NotInstalled`."""
        folder = self._folder / f"gguf_{number}"
        python, source = self._installed.python(), self._installed.llama_cpp()
        folder.mkdir(exist_ok=True)
        pairs = [[str(own), f"{folder}/{own.name}.gguf"] for own in self.exported(number)]
        words = [word for pair in pairs for word in pair]
        _run([str(python), str(CONVERTER), str(source), *words])
        return folder

    def one_path(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        """Path 0, by how many requests at once."""
        at_once = max(self._options.at_once)
        (folder,) = self.exported(1)
        make: dict[str, Callable[[], Peer]] = {
            peers.TRANSFORMERS: lambda: peers.transformers(
                self._installed, folder, self._context, at_once
            ),
            peers.LLAMA_SERVER: lambda: peers.llama_server(
                self._installed, self.gguf(1) / "path_0000.gguf", self._context, at_once
            ),
            peers.VLLM: lambda: peers.vllm(self._installed, folder, self._context, at_once),
        }
        wanted = {name: make[name] for name in self._options.rivals}
        return self._compare(stack, wanted, 1, self._options.at_once)

    def many_paths(self, stack: contextlib.ExitStack, number: int) -> dict[str, Any]:
        """So many paths, with the most requests at once."""
        at_once = max(self._options.at_once)
        wanted: dict[str, Callable[[], Peer]] = {
            peers.LLAMA_ROUTER: lambda: peers.llama_router(
                self._installed, self.gguf(number), number, self._context, at_once
            )
        }
        return self._compare(stack, wanted, number, [at_once])

    def _compare(
        self,
        stack: contextlib.ExitStack,
        wanted: dict[str, Callable[[], Peer]],
        num_paths: int,
        numbers: Sequence[int],
    ) -> dict[str, Any]:
        options = self._options
        generator = LoadGenerator(
            self._installed.aiperf(),
            self.exported(1)[0],
            self._folder / f"loads_{num_paths}",
            options.new_tokens,
            options.load_seconds,
        )
        at_once = max(numbers)
        try:
            ours = self._start(stack, peers.ours(self._run, self._name, at_once), 0)
        except ServerFailed as error:
            raise SystemExit(f"dipaco serve: {error}") from error
        self._warm(ours, num_paths)
        running = [ours]
        for name, make in wanted.items():
            try:
                chosen = self._choose_threads(stack, make(), generator, num_paths, at_once)
                same = same_texts(ours, chosen, self._draw(COMPARED), num_paths)
                _say(
                    f"{name}: {same} of {COMPARED} greedy texts are ours, {chosen.threads} threads"
                )
                running.append(chosen)
            except NotInstalled as error:
                self._leave_out(name, f"not installed: {error}")
            except (ServerFailed, LoadFailed) as error:
                self._leave_out(name, str(error))
        contest = Contest(running, generator, num_paths, self._draw)
        threads = {own.peer.name: own.threads for own in running}
        result: dict[str, Any] = {}
        for number in numbers:
            num_requests = max(options.least_requests, options.requests * number)
            try:
                loads = contest.rounds(number, num_requests, options.rounds)
            except LoadFailed as error:
                raise SystemExit(f"dipaco serve: {error}") from error
            result[str(number)] = summary(loads)
            print("\n".join(lines(num_paths, number, result[str(number)], threads)), flush=True)
        for name, why in contest.left_out.items():
            self._leave_out(name, why)
        return result

    def _choose_threads(
        self,
        stack: contextlib.ExitStack,
        peer: Peer,
        generator: LoadGenerator,
        num_paths: int,
        at_once: int,
    ) -> Running:
        """A server with the number of threads that answers a load soonest."""
        cores = len(os.sched_getaffinity(0))
        candidates = sorted({1, cores} if self._options.threads is None else self._options.threads)
        best, best_rate, problem = None, 0.0, None
        prompts = self._draw(2 * at_once)
        for threads in candidates:
            try:
                running = self._start(stack, peer, threads)
                self._warm(running, num_paths)
                if len(candidates) == 1:
                    return running
                contest = Contest([running], generator, num_paths, self._draw)
                rate = contest.ask(running, prompts, at_once).load.tokens_per_second
            except (ServerFailed, LoadFailed) as error:
                _say(f"{peer.name} with {threads} threads: {error}")
                problem = error
                continue
            _say(f"{peer.name} with {threads} threads: {rate:.0f} tokens/s, {at_once} at once")
            if best is not None and rate <= best_rate:
                running.process.stop()
                continue
            if best is not None:
                best.process.stop()
            best, best_rate = running, rate
        if best is None:
            assert problem is not None
            raise problem
        return best

    def _start(self, stack: contextlib.ExitStack, peer: Peer, threads: int) -> Running:
        _say(f"starting {peer.name}" + (f" with {threads} threads" if threads else ""))
        folder = self._folder / "logs"
        folder.mkdir(exist_ok=True)
        running = start(peer, threads, folder, self._options.start_seconds)
        stack.callback(running.process.stop)
        return running

    def _warm(self, running: Running, num_paths: int) -> None:
        """Asks every path once: it is read, compiled, or has its process."""
        (prompt,) = self._draw(1)
        with running.going_on():
            for path in range(num_paths):
                complete(
                    running.process.url, running.peer.model, running.peer.request(prompt, path)
                )

    def _draw(self, number: int) -> list[str]:
        return list(itertools.islice(self._prompts, number))

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        print(f"{name}: {why}", flush=True)


def _prompts(corpus: Any) -> Iterator[str]:
    """Texts of `PROMPT` tokens each from test documents, again and again."""
    tokenizer = corpus.tokenizer()
    cut = [
        tokenizer.decode(ids[first : first + PROMPT])
        for ids in corpus.tokens(corpus.documents("test")[:2000])
        for first in range(0, len(ids) - PROMPT, PROMPT)
    ]
    texts = [
        text
        for text, ids in zip(cut, tokenizer.encode(cut), strict=True)
        if len(ids) == PROMPT and "\ufffd" not in text
    ]
    if not texts:
        raise SystemExit(f"no {PROMPT} tokens of the run's test text are a text of as many")
    return itertools.cycle(dict.fromkeys(texts))


def _run(words: list[str]) -> None:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} ended with {done.returncode}:\n{done.stdout}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--rivals-env",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder that the rivals are installed in; made if it is not there",
    )
    parser.add_argument("--run", type=Path, help="finished run to serve (none = one made for this)")
    parser.add_argument(
        "--width", type=int, default=256, choices=[128, 256], help="of a run made for this (256)"
    )
    parser.add_argument("--only", choices=PARTS, help="one part (both)")
    parser.add_argument(
        "--rivals",
        nargs="+",
        default=list(peers.ONE_PATH),
        choices=peers.ONE_PATH,
        help="on one path (all)",
    )
    parser.add_argument(
        "--paths", type=int, nargs="+", default=[16], help="of the part with many (16)"
    )
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32], help="requests")
    parser.add_argument("--rounds", type=int, default=6, help="of each load (6)")
    parser.add_argument("--requests", type=int, default=6, help="of each client in a load (6)")
    parser.add_argument(
        "--least-requests", type=int, default=16, help="in a load, if that is more (16)"
    )
    parser.add_argument("--new-tokens", type=int, default=64, help="of each request (64)")
    parser.add_argument(
        "--threads", type=int, nargs="+", help="of rivals that are tried (1 and all cores)"
    )
    parser.add_argument("--start-seconds", type=float, default=600, help="for a server (600)")
    parser.add_argument("--load-seconds", type=float, default=300, help="for a load (300)")
    parser.add_argument(
        "--install-seconds", type=float, default=3600, help="for a step of installing (3600)"
    )
    return parser.parse_args(words)


def main() -> None:
    options = parse()
    installed = Installed(options.rivals_env, options.install_seconds)
    try:
        installed.aiperf()
    except NotInstalled as error:
        raise SystemExit(f"Nothing can be measured without aiperf: {error}") from error
    result: dict[str, Any] = {}
    with scratch(None, "peers-") as folder:
        run = options.run
        if run is None:
            run = folder / "run"
            side = 2 if options.only == PARTS[0] else math.isqrt(max(options.paths))
            make_run(run, side=side, width=options.width)
        bench = Bench(run, options, folder, installed)
        if options.only != PARTS[0] and max(options.paths) > bench.num_paths:
            raise SystemExit(
                f"The run has {bench.num_paths} paths, not {max(options.paths)}: --paths"
            )
        print(HEAD, flush=True)
        if options.only in (None, PARTS[0]):
            with contextlib.ExitStack() as stack:
                result["one_path"] = bench.one_path(stack)
        if options.only in (None, PARTS[1]):
            result["many_paths"] = {}
            for number in options.paths:
                with contextlib.ExitStack() as stack:
                    result["many_paths"][str(number)] = bench.many_paths(stack, number)
        result["left_out"] = bench.left_out
    print(json.dumps(result))


if __name__ == "__main__":
    main()
