"""Workers on hosts with real links, kept at work: one for each host, started again when it ends."""

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from storms.fleet import InTurn, StormFault
from support.hosts import Link
from support.sites import SERVERS, Site
from support.wall_clock import WallClock

from dipaco.config import MODULAR, RunConfig
from dipaco.runs.opening import create_or_open, open_run
from dipaco.runs.run import Run
from dipaco.store.address import Address

HOUR_SECONDS = 3600
LOOK_SECONDS = 0.05


class HostFleet:
    """One run, and a worker on each host.

    Args:
      config: the trained config.
      site: its hosts and servers.
      names: the hosts.
      options: the command line.
      clock: the library that sets wall clocks apart, or None.
    """

    def __init__(
        self,
        config: RunConfig,
        site: Site,
        names: list[str],
        options: argparse.Namespace,
        clock: Path | None,
    ):
        self.site, self.names, self.options = site, list(names), options
        self.address = Address.parse(f"{site.bucket}/fleet")
        run, _ = create_or_open(self.address, config, None, site.database.url)
        run.ledger.close()
        self._hurry = site.folder / "hurry"  # once it is there, no task is paced
        self.faults: Counter[str] = Counter()
        self.processes: dict[str, subprocess.Popen] = {}  # worker -> its process
        self._host_of: dict[str, str] = {}
        self._lost: list[subprocess.Popen] = []  # hosts that were given up
        self._started = 0
        self.clocks = {} if clock is None else self._set_clocks(clock)
        # Seconds of all hosts that were not given up, while tasks were paced, and their phases of
        # paths.
        self.alive_seconds, self.path_phases = 0.0, 0

    def _set_clocks(self, library: Path) -> dict[str, WallClock]:
        """Hours apart: host 1 is two hours ahead, host 2 four behind, and so on."""
        clocks = {}
        for number, name in enumerate(self.names):
            clocks[name] = WallClock(library, self.site.folder / name / "clock")
            clocks[name].jump((-1) ** number * 2 * number * HOUR_SECONDS)
        return clocks

    def open(self) -> Run:
        return open_run(self.address, self.site.database.url)

    def link_of(self, worker: str) -> Link:
        return self.site.host(self._host_of[worker]).link

    def limit(self, link: Link) -> None:
        """A link that was restored has its rate again."""
        link.rate(self.options.mbit)

    def uploading(self, worker: str) -> Path:
        """Is there while the worker uploads an object."""
        return self.site.folder / self._host_of[worker] / f"{worker}.uploading"

    def forget(self, worker: str) -> None:
        """Its host is given up."""
        self._lost.append(self.processes.pop(worker))
        self.names.remove(self._host_of[worker])

    def go_on_for(self, seconds: float, run: Run) -> None:
        """The others are kept at work meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.keep_workers(run)
            run.ledger.reaper.reap()
            time.sleep(LOOK_SECONDS)

    def work(self, faults: Iterator[StormFault]) -> float:
        """Seconds of training, until the run is finished."""
        in_turn, began = InTurn(faults, self.options.faults), None
        deadline = time.monotonic() + self.options.most_minutes * 60
        next_seconds, run = time.monotonic(), self.open()
        try:
            looked = time.monotonic()
            while not run.ledger.queue.is_finished():
                self.keep_workers(run)
                now = time.monotonic()
                if began is None and run.ledger.queue.task_counts().get(("train", MODULAR)):
                    began = now
                if began is not None and not in_turn.is_over():
                    self.alive_seconds += (now - looked) * len(self.names)
                    self.path_phases = run.ledger.progress.training_totals(MODULAR).path_phases
                looked = now
                # Not before a first task is recorded: on a busy machine compiling outlasts all
                # faults, and of no task there is no goodput.
                is_time = self.path_phases > 0 and now > next_seconds
                if is_time and (happened := in_turn.next_of(run)) is not None:
                    self.faults[happened] += 1
                    print(f"  {time.monotonic() - (began or 0):6.1f} s  {happened}", flush=True)
                    next_seconds = time.monotonic() + self.options.fault_every
                if in_turn.is_over():
                    self._hurry.touch()
                if now > deadline:
                    raise SystemExit(f"not finished in time; logs are in {self.site.folder}")
                time.sleep(LOOK_SECONDS)
            assert began is not None
            return time.monotonic() - began
        finally:
            self.end()
            run.ledger.close()

    def keep_workers(self, run: Run) -> None:
        """Starts a worker on each host that has none. Tasks of dead ones wait for their leases."""
        for worker, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            del self.processes[worker]
            if process.returncode not in (0, -signal.SIGKILL):
                log = self.site.folder / self._host_of[worker] / f"{worker}.log"
                words = log.read_text()[-3000:]
                raise SystemExit(f"{worker} ended with {process.returncode}:\n{words}")
        at_work = {self._host_of[worker] for worker in self.processes}
        for host in self.names:
            if host not in at_work and not run.ledger.queue.is_finished():
                self._start(host)

    def _start(self, host: str) -> None:
        self._started += 1
        worker = f"{host}-{self._started}"
        self._host_of[worker] = host
        self.uploading(worker).unlink(missing_ok=True)
        words = ["worker", "--run", str(self.address), "--database", self.site.database.url]
        words += ["--name", worker, "--lease-seconds", str(self.options.lease_seconds)]
        orders = {
            "task_seconds": self.options.task_seconds,
            "hurry": str(self._hurry),
            "uploading": str(self.uploading(worker)),
            "machine": worker,
        }
        clock = self.clocks.get(host)
        variables = {} if clock is None else clock.environment
        self.processes[worker] = self.site.start(host, words, orders, variables, log=worker)

    def end(self) -> None:
        """Kills all processes."""
        for process in (*self.processes.values(), *self._lost):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def servers_link(self) -> Link:
        return self.site.host(SERVERS).link
