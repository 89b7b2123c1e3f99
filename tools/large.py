"""The whole job at a size: trained, killed, resumed, exported, served, and what each part costs.

    python tools/large.py                              # 46 M parameters a path: minutes
    python tools/large.py --parameters 176e6 --rows 8  # a path as large as the paper's: an hour

A 2x2 of paths is prepared, trained for `--phases` of `--steps`, killed with SIGKILL in the middle
of its second phase, and resumed to its report. Then `status`, a page of the dashboard, an export of
path 0, its log-probabilities beside those of `transformers`, and a server: its first answer, then
1 and 8 rows at once, beside `transformers.generate`. With `--exact` the same run is trained again
without the kill, and must end with equal digests.

Text is made up. Of each command the table has seconds, CPU seconds, and the most memory of all its
processes together (resident, Linux). The memory of training stands beside what `dipaco plan` says.
The last line is JSON.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_prepare import write_text
from support.command_line import parser_of
from support.process_cost import cpu_seconds_of, memory_of_all
from support.scratch import scratch
from support.serve_process import serving

HOME = Path(__file__).parents[1]
NEW_TOKENS = 32
LOG_PROBABILITY_TOLERANCE = 1e-3
CONFIG = """
from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.routing.config import RoutingConfig
from dipaco.topology import Level, Topology, blocks

def run() -> RunConfig:
    return RunConfig(
        name="large",
        model=ModelConfig(
            vocab_size={vocabulary}, d_model={width}, num_layers={layers}, num_heads={heads},
            d_ff={hidden}, max_length={length},
        ),
        topology=Topology(levels=(
            Level(name="early", parts=("embed", *blocks(0, {layers} // 2 - 1)), experts=2),
            Level(
                name="late",
                parts=(*blocks({layers} // 2, {layers} - 1), "final_norm", "head"), experts=2,
            ),
        )),
        data=DataConfig(sources=("jsonl:{text}",), length={length}, held_fraction=0.02),
        base=BaseSettings(steps={steps}),
        routing=RoutingConfig(kind="product_kmeans", rule="likelihood", floor=0.5),
        phases={phases},
        inner=InnerSettings(steps={steps}, batch_size={rows}, learning_rate=1e-3, warmup_steps=1),
        evaluation=EvaluationSettings(max_documents=50, batch_size=8),
        baselines=(),
    )
"""


class Shape(NamedTuple):
    """Sizes of a path."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    hidden: int
    length: int

    @property
    def parameters(self) -> int:
        of_layer = 4 * self.width**2 + 3 * self.width * self.hidden
        return 2 * self.vocabulary * self.width + self.layers * of_layer


def shape_of(parameters: float, length: int) -> Shape:
    """The largest path of at most so many parameters, in the proportions of the paper's (12 layers,
    896 wide).
    """
    vocabulary = next(
        size for least, size in ((1e8, 32_000), (2e7, 16_000), (0, 1000)) if parameters >= least
    )
    shapes = (
        Shape(
            vocabulary, width, max(2, width * 12 // 896), width // 32, width * 18 // 56 * 8, length
        )
        for width in range(32, 4097, 32)
    )
    fitting = [shape for shape in shapes if shape.parameters <= parameters]
    if not fitting:
        raise SystemExit(f"a path of {parameters:,.0f} parameters is too small: at least 100,000")
    return max(fitting, key=lambda shape: shape.parameters)


class Part(NamedTuple):
    """What a part of the job cost."""

    name: str
    seconds: float
    cpu_seconds: float
    memory: int  # bytes, the most of all its processes together


class Meter:
    """Samples a process and its children while it runs."""

    def __init__(self, name: str, pid: int):
        self._name, self._pid, self._began = name, pid, time.monotonic()
        self.memory, self.cpu_seconds = 0, 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._end.wait(1.0):  # reading the memory of a large process takes its lock
            self.memory = max(self.memory, memory_of_all(self._pid))
            self.cpu_seconds = max(self.cpu_seconds, cpu_seconds_of(self._pid))

    def part(self) -> Part:
        """The cost until now, at the end."""
        self._end.set()
        self._thread.join()
        return Part(self._name, time.monotonic() - self._began, self.cpu_seconds, self.memory)


def command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "dipaco.cli.main", *map(str, words)]


def run_part(name: str, words: list[str], until: Callable[[], bool] | None = None) -> Part:
    """Runs a command to its end, or kills it with SIGKILL once `until` is true."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    meter = Meter(name, process.pid)
    while process.poll() is None:
        if until is not None and until():
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    if process.returncode and until is None:
        raise SystemExit(f"{name} ended with exit code {process.returncode}")
    if until is not None and process.returncode != -signal.SIGKILL:
        raise SystemExit(f"{name} ended before it was to be killed: more --steps")
    return meter.part()


def ask(run: Path, query: str) -> list[tuple]:
    """Rows of the run's ledger. Empty while there is no ledger."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{run}/ledger.sqlite?mode=ro", uri=True)) as db,
    ):
        return db.execute(query).fetchall()
    return []


def trained_paths(run: Path) -> int:
    (row,) = ask(run, "SELECT count(*) FROM trained WHERE arm = 'modular'") or [(0,)]
    return row[0]


def digests(run: Path) -> list[tuple]:
    return ask(run, "SELECT arm, module, phase, digest FROM modules ORDER BY arm, module, phase")


def disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def answer(url: str, prompt: str) -> int:
    """Asks for a greedy completion. Returns its number of tokens."""
    body = {"model": "large", "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as reply:
        return json.load(reply)["usage"]["completion_tokens"]


def serve(run: Path, prompts: list[str]) -> tuple[list[Part], dict[str, float]]:
    """A server's first answer, and tokens a second of one request and of all at once."""
    began = time.monotonic()
    with serving(run, "--rows", "8", is_compiled=False) as server:
        url = f"http://{server.host}:{server.port}"
        answer(url, prompts[0])
        seconds, spent = time.monotonic() - began, cpu_seconds_of(server.process.pid)
        first = Part("serve, first answer", seconds, spent, memory_of_all(server.process.pid))
        server.wait_until_compiled()
        rates = {}
        for number in (1, len(prompts)):
            for key in (None, f"serve_{number}_tokens_per_second"):  # The first compiles.
                began = time.monotonic()
                with ThreadPoolExecutor(number) as threads:
                    tokens = sum(threads.map(lambda each: answer(url, each), prompts[:number]))
                if key:
                    rates[key] = tokens / (time.monotonic() - began)
    return [first], rates


def log_probabilities(run: Path, tokens: np.ndarray) -> np.ndarray:
    """Those of path 0 of the newest release, of each token but the first."""
    from dipaco.runs.opening import reading

    with reading(run) as opened:
        release = opened.ledger.facts.release("modular")
        score = opened.scoring_programs.log_likelihoods(opened.path_of(release, 0))
        return np.asarray(score(tokens[None], np.ones_like(tokens)[None]))[0, 1:]


def compare(run: Path, exported: Path, vocabulary: int, number: int) -> dict[str, float]:
    """Differences from `transformers`, and the tokens a second of its `generate`."""
    from rivals.transformers_rival import Theirs

    theirs, random = Theirs(exported), np.random.default_rng(0)
    tokens = random.integers(0, vocabulary, 64, np.int32)
    apart = np.abs(log_probabilities(run, tokens) - theirs.log_probabilities(tokens)).max()
    if not apart <= LOG_PROBABILITY_TOLERANCE:
        raise SystemExit(f"log-probabilities differ from those of transformers by {apart}")
    found = {"log_probability_difference": float(apart)}
    for rows in (1, number):
        prompts = random.integers(0, vocabulary, (rows, 16))
        theirs.generate(prompts, NEW_TOKENS)
        began = time.monotonic()
        theirs.generate(prompts, NEW_TOKENS)
        taken = time.monotonic() - began
        found[f"transformers_{rows}_tokens_per_second"] = rows * NEW_TOKENS / taken
    return found


@contextlib.contextmanager
def folder_of(given: Path | None) -> Generator[Path]:
    if given is not None:
        given.mkdir(parents=True)
        yield given
        return
    with scratch(None, "large-") as folder:
        yield folder


def job(options: Any, folder: Path) -> tuple[list[Part], dict[str, Any]]:
    shape = shape_of(options.parameters, options.length)
    text, config, run = folder / "text.jsonl", folder / "config.py", folder / "run"
    write_text(text, options.megabytes)
    sizes = {"rows": options.rows, "steps": options.steps, "phases": options.phases}
    config.write_text(CONFIG.format(**shape._asdict(), **sizes, text=text))
    words = command("plan", config, "--workers", 1, "--step-seconds", 1, "--json")
    plan = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)

    train = command("train", config, "--run", run)
    parts = [
        run_part("train, killed", train, lambda: trained_paths(run) >= 5),
        run_part("resumed, to its report", train),
    ]
    result: dict[str, Any] = {
        "parameters": plan["parameters_per_path"],
        "plan": plan["memory_on_cpu_bytes"],
    }
    result["memory_by_plan"] = max(part.memory for part in parts) / plan["memory_on_cpu_bytes"]
    result["disk"] = disk_bytes(run)
    if options.exact:
        parts.append(run_part("undisturbed", command("train", config, "--run", folder / "twin")))
        result["is_exact"] = digests(run) == digests(folder / "twin") != []
        if not result["is_exact"]:
            raise SystemExit("the killed run ended with other digests than the undisturbed one")
    exported = folder / "exported"
    parts += [
        run_part("status", command("status", "--run", run, "--json")),
        run_part(
            "dashboard, one file",
            command("dashboard", "--run", run, "--export", folder / "page.html"),
        ),
        run_part("export", command("export", "--run", run, "--path", 0, "--out", exported)),
    ]
    if not options.without_serving:
        prompts = [json.loads(line)["text"][:60] for line in text.open()][:8]
        served, rates = serve(run, prompts)
        parts += served
        result |= rates | compare(run, exported, shape.vocabulary, len(prompts))
    return parts, result


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--parameters", type=float, default=46e6, help="of a path (46e6)")
    parser.add_argument("--rows", type=int, default=4, help="of a batch (4)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row (512)")
    parser.add_argument("--steps", type=int, default=2, help="of a phase (2)")
    parser.add_argument("--phases", type=int, default=3, help="(3)")
    parser.add_argument("--megabytes", type=int, default=8, help="of text (8)")
    parser.add_argument("--exact", action="store_true", help="also an undisturbed run")
    parser.add_argument("--without-serving", action="store_true", help="needs no transformers")
    parser.add_argument("--folder", type=Path, help="a new one, which is kept (a temporary one)")
    options = parser.parse_args()
    with folder_of(options.folder) as folder:
        parts, result = job(options, folder.resolve())
    print(f"{'':26} {'seconds':>8} {'of CPU':>8} {'GB':>6}")
    for part in parts:
        print(
            f"{part.name:26} {part.seconds:8.1f} {part.cpu_seconds:8.1f} {part.memory / 1e9:6.2f}"
        )
    print(f"plan {result['plan'] / 1e9:.2f} GB; measured {result['memory_by_plan']:.2f} of it")
    print(json.dumps({**result, "parts": {part.name: part[1:] for part in parts}}))


if __name__ == "__main__":
    main()
