"""A swarm whose backbone is on a public host and whose volunteers are at home, behind routers: real
processes on the hosts of `tools/support/hosts.py`.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from support.hosts import Hosts

from dipaco.config import MODULAR
from dipaco.runs.opening import open_run
from dipaco.workers.replay import path_steps

TOOLS = Path(__file__).parents[2] / "tools"
DIPACO = [sys.executable, "-m", "dipaco.cli.main"]
PORT = 4567
BATCH = 16
CONFIG = '''"""One path on the toy corpus, for volunteers at home."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import Level, Topology

MODEL = ModelConfig(vocab_size=300, d_model=32, num_layers=1, num_heads=2, d_ff=48, max_length=48)


def run() -> RunConfig:
    return RunConfig(
        name="homes",
        model=MODEL,
        topology=Topology(levels=(Level(name="all", parts=part_names(MODEL)),)),
        data=DataConfig(
            sources=("toy:?clusters=2&documents=100&words=40",),
            length=48,
            held_fraction=0.05,
            router_fraction=0.2,
            processes=1,
        ),
        base=BaseSettings(steps=0),
        phases=1,
        routing=RoutingConfig(kind="kmeans"),
        outer=OuterSettings(learning_rate=1.0, momentum=0.0),
        inner=InnerSettings(steps=2000, batch_size=16, learning_rate=1e-3, warmup_steps=2),
        evaluation=EvaluationSettings(batch_size=16),
        baselines=(),
    )
'''


class SwarmAtHome:
    """One run, its backbones and its volunteers, each on a host of its name.

    Args:
      folder: of everything.
      cache: of the commands.
      listen: where a backbone listens, on its host's address.
    """

    def __init__(self, folder: Path, hosts: Hosts, cache: Path, listen: str = "{}:{}"):
        self.folder, self.hosts, self.cache = folder, hosts, cache
        self.run_folder, self.listen = folder / "run", listen
        self.processes: dict[str, subprocess.Popen] = {}

    def start_backbone(self, name: str = "back", save_seconds: int = 3600) -> None:
        """Volunteers that join afterwards are given its address."""
        config = self.folder / "config.py"
        config.write_text(CONFIG)
        listen = self.listen.format(self.hosts[name].address, PORT)
        words = ["swarm", "start", str(config), "--run", str(self.run_folder), "--name", name]
        words += ["--listen", listen, "--block-rows", "1", "--lease-seconds", "5"]
        self._start(name, [*DIPACO, *words, "--save-seconds", str(save_seconds)])
        self.wait_for(lambda: "dipaco swarm join " in self.said(name))
        self.address = self.said(name).rpartition("dipaco swarm join ")[2].split()[0]

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
            self.processes.pop(name).wait()

    def join(self, name: str, *more: str, seconds_per_block: float = 0.1) -> None:
        """A volunteer on its host; a block takes so long at least."""
        own = self.folder / f"{name}.pass"
        token = ["swarm", "token", "--run", str(self.run_folder), "--name", name, "--out", str(own)]
        subprocess.run([*DIPACO, *token], check=True, stdout=subprocess.DEVNULL)
        slow = [sys.executable, str(TOOLS / "swarm_slow.py"), str(seconds_per_block)]
        words = ["swarm", "join", self.address, "--token", str(own), *more]
        self._start(name, [*slow, str(self.folder / f"{name}.doing"), *words])

    def _start(self, name: str, words: list[str]) -> None:
        environment = {**os.environ, "XLA_FLAGS": "", "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = self.hosts[name].popen(
                words, stdout=log, stderr=log, env=environment | {"DIPACO_CACHE": str(self.cache)}
            )

    def said(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def wait_for(self, condition, seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = {name: one.poll() for name, one in self.processes.items()}
            assert set(ended.values()) == {None}, f"{ended}\n{self.everything_said()}"
            assert time.monotonic() < deadline, self.everything_said()
            time.sleep(0.1)

    def everything_said(self) -> str:
        return "\n".join(f"== {name}\n{self.said(name)[-3000:]}" for name in self.processes)

    def steps(self):
        """What the ledger has of each step."""
        with contextlib.closing(open_run(self.run_folder).ledger) as ledger:
            return ledger.swarms.steps(MODULAR, 0)

    def status(self):
        with contextlib.closing(open_run(self.run_folder).ledger) as ledger:
            (status,) = ledger.swarms.statuses()
        return status

    def wait_for_steps_with(self, names: set[str], count: int) -> list:
        """So many steps more that have rows of all of these; returns them, from now on."""
        before = len(self.steps())

        def those():
            senders = [{who.partition("/")[0] for who in one.blocks} for one in self.steps()]
            return [who for who in senders[before:] if names <= who]

        self.wait_for(lambda: len(those()) >= count)
        return self.steps()[before:]

    def end(self) -> None:
        for name in reversed(self.processes):  # the backbone last
            process = self.processes[name]
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()


def assert_is_of_one_machine(swarm: SwarmAtHome) -> None:
    """Every row of every step was counted once, and each loss is that of plain AdamW."""
    steps = swarm.steps()
    assert [one.step for one in steps] == list(range(len(steps)))
    for one in steps:
        assert sorted(b for blocks in one.blocks.values() for b in blocks) == list(range(BATCH))
    run = open_run(swarm.run_folder)
    with contextlib.closing(run.ledger):
        plain = [one.loss for one in itertools.islice(path_steps(run, 0), len(steps))]
    np.testing.assert_allclose([one.loss for one in steps], plain, rtol=1e-5)
