"""Paths on machines that can barely talk to each other, for real: four hosts that are network
namespaces, each behind a link of `--mbit` megabits a second (`tc tbf`), with PostgreSQL and a
bucket behind another.

    python tools/bench_links.py --mbit 20
    python tools/bench_links.py --mbit 10 --ways lock-step 2x2 2x2+int8 --set inner.steps=50
    python tools/bench_links.py --mbit 20 --plot links.png --phases 5 --results links.json

A way is `diloco` (the paths share everything), `2x2`, or either with settings: `2x2+int8` is a
codec, `2x2+outer.codec=int8,inner.steps=40` any settings. `lock-step` and `one-machine` take no
settings. Every inner step takes `--step-seconds` on each host, whatever runs beside it. The
servers' host prepares, trains the base model and evaluates, and no host waits for it. Measured,
from the end of the first phase (in which programs are compiled) to the end of the last:

- the share of the hosts' time in inner steps, and the seconds of a phase;
- bytes down and up of a host, by the counter of its interface;
- beside both, what `dipaco plan` says of the same settings (`runs/forecast/`);
- the seconds that a processor worked for a host between the steps of one phase and of the next. On
  a machine that is busy with other things these take many times as long as they would by
  themselves; *beside nothing else* is the share in computing of steps at their pace, bytes at the
  link's rate, and these seconds.

With `--results FILE` each way is kept there once it is measured, and taken from there by the next
call with the same settings.

`lock-step` is as many machines that average gradients at every step. The program has no such run
across machines (one worker takes the steps of all), so its perplexities are from the baseline
`data_parallel`, and its time is measured by exchanges over the same links. `--exchanges` times,
every host sends a gradient's bytes to the servers' host, which returns as many once it has all.
`one-machine` is one model on one machine, which takes the steps of all paths at that pace and needs
no link (the baseline `dense_equal_tokens`).

Needs root, iproute2, iptables and PostgreSQL, and says which of them is missing. The last line is
JSON.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.command_line import parser_of
from support.scratch import scratch
from support.sites import SERVERS, Site, site, why_no_site

from dipaco.caches import cache_folder
from dipaco.config import DATA_PARALLEL, DENSE_EQUAL_TOKENS, MODULAR, RunConfig
from dipaco.control.planning.tasks import PRIORITY
from dipaco.data.packages.source import open_packages
from dipaco.data.prompts import SampleSettings
from dipaco.evaluation.tables import num_bytes, seconds_over_link
from dipaco.model.config import num_parameters, part_names
from dipaco.overrides import load_config, override
from dipaco.runs.forecast.forecast import Machines, phase_time
from dipaco.runs.forecast.traffic import (
    NOTHING,
    VALUE_BYTES,
    Traffic,
    lock_step_traffic,
    total,
    traffic_of_a_phase,
)
from dipaco.runs.opening import create_or_open
from dipaco.runs.run import Run
from dipaco.schedule.plan import one_model
from dipaco.store.address import Address

HOSTS = ("ana", "bo", "cy", "di")
LOCK_STEP, ONE_MACHINE = "lock-step", "one-machine"
BASELINE = {LOCK_STEP: DATA_PARALLEL, ONE_MACHINE: DENSE_EQUAL_TOKENS}
OF_HOSTS = ("train", "outer")
# Tasks of `dipaco worker --no-outer-steps`. All other evaluation is off.
OF_SLOW_HOSTS = ("train",)
LOOK_SECONDS = 0.1
CHUNK = 1 << 16


class Moment(NamedTuple):
    """Counters at the moment when all modules had reached a phase."""

    seconds: float
    carried: list[tuple[int, int]]  # host -> bytes down and up


def main() -> None:
    options = parse()
    if (problem := why_no_site()) is not None:
        print(f"Skipped: {problem}")
        print(json.dumps({"skipped": problem}))
        return
    given = {
        "mbit": options.mbit,
        "store_mbit": options.store_mbit,
        "hosts": len(HOSTS),
        "step_seconds": options.step_seconds,
        "steps_elsewhere": options.no_outer_steps,
    }
    settings = {"phases": options.phases, "until": options.until, "set": options.overrides}
    kept = Results(options.results, given | settings)
    missing = [way for way in options.ways if way not in kept.ways]
    for way in missing:
        config_of(options, way)  # settings that do not go together are said before anything starts
    if missing:
        packages = fetched_packages(config_of(options, missing[0]))
        with (
            scratch(options.folder, "links-") as folder,
            site(HOSTS, folder, options.mbit, options.store_mbit) as at,
        ):
            (at.cache(SERVERS) / "packages").symlink_to(packages)
            for way in missing:
                kept.add(way, MEASURES.get(way, measure)(options, at, way))
                print(line(way, kept.ways[way]), flush=True)
    results = {way: kept.ways[way] for way in options.ways}
    print("\n".join(table(results)))
    if options.plot:
        draw(results, options.mbit, options.plot)
    print(json.dumps(given | {"ways": results}))


def fetched_packages(config: RunConfig) -> Path:
    """The folder of the demo corpus's archives. Hosts reach nothing outside, so it is filled before
    there are any.
    """
    if "packages:" in config.data.sources:
        open_packages(say=print)
    folder = cache_folder() / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


class Results:
    """The ways that are measured already, in a file or in memory alone.

    Args:
      file: None = in memory.
      given: settings. Results under other settings are not taken.
    """

    def __init__(self, file: Path | None, given: dict[str, Any]):
        self._file, self._given, self.ways = file, given, {}
        if file is not None and file.exists():
            found = json.loads(file.read_text())
            if found["given"] != given:
                sys.exit(f"{file} has results of other settings: {found['given']}, not {given}.")
            self.ways: dict[str, dict[str, Any]] = found["ways"]

    def add(self, way: str, result: dict[str, Any]) -> None:
        self.ways[way] = result
        if self._file is not None:
            new = self._file.with_name(f"{self._file.name}.new")
            new.write_text(json.dumps({"given": self._given, "ways": self.ways}, indent=1))
            new.replace(self._file)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--mbit", type=float, default=20.0, help="of every host, each way (20)")
    parser.add_argument("--store-mbit", type=float, help="of the servers' host; else unshaped")
    parser.add_argument("--step-seconds", type=float, default=1.0, help="of an inner step (1)")
    parser.add_argument("--phases", type=int, default=3, help="the first is not measured (3)")
    parser.add_argument("--until", type=int, metavar="N", help="end a way after N of its phases")
    parser.add_argument("--config", default="quickstart", help="model, text and settings")
    parser.add_argument(
        "--ways", nargs="+", default=[*BASELINE, "diloco", "2x2", "2x2+int8"], metavar="WAY"
    )
    parser.add_argument("--exchanges", type=int, default=3, help="of lock-step, measured (3)")
    parser.add_argument("--set", nargs="+", action="extend", default=[], dest="overrides")
    parser.add_argument(
        "--no-outer-steps", action="store_true", help="of the hosts: the servers' host takes them"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON; see above")
    parser.add_argument("--plot", type=Path, help="perplexity against minutes")
    parser.add_argument("--folder", help="where runs are put, and removed afterwards")
    options = parser.parse_args(words)
    if options.phases < 2 or options.mbit <= 0 or options.step_seconds <= 0:
        parser.error("--phases must be 2 or more, --mbit and --step-seconds above 0")
    options.until = options.phases if options.until is None else options.until
    if not 2 <= options.until <= options.phases:
        parser.error("--until must be 2 or more, and not above --phases")
    for way in options.ways:
        name, _, settings = way.partition("+")
        if name not in (*BASELINE, "diloco", "2x2") or (name in BASELINE and settings):
            ways = ", ".join(BASELINE)
            parser.error(f"`{way}` is no way: {ways}, diloco, 2x2, or one of these two +SETTINGS")
    return options


def config_of(options: argparse.Namespace, way: str) -> RunConfig:
    """The config of a way, with its topology and without parts that are not measured."""
    name, _, settings = way.partition("+")
    words = [each if "=" in each else f"outer.codec={each}" for each in settings.split(",") if each]
    config = load_config(options.config)
    topology = config.topology
    if name == "diloco":
        topology = one_model(part_names(config.model), len(HOSTS))
    baselines = (BASELINE[name],) if name in BASELINE else ()
    config = dataclasses.replace(
        config,
        name="links",
        phases=options.phases,
        topology=topology,
        baselines=baselines,
        samples=SampleSettings(),
        evaluation=dataclasses.replace(
            config.evaluation, every_phases=1, best_path=False, ensembles=False
        ),
    )
    if name == "diloco":
        # No choice of modules to route by, and as DiLoCo was published.
        config = dataclasses.replace(
            config,
            routing=dataclasses.replace(config.routing, kind="kmeans"),
            outer=dataclasses.replace(config.outer, rescale_by_fan_in=False),
        )
    config = override(config, [*options.overrides, *words])
    if config.num_paths != len(HOSTS):
        sys.exit(f"{way} has {config.num_paths} paths, and there are {len(HOSTS)} hosts.")
    return config


def measure(options: argparse.Namespace, at: Site, way: str) -> dict[str, Any]:
    """A run, by all hosts."""
    config = config_of(options, way)
    name = way.replace(",", "_")
    run, words = begin(at, name, config)
    of_hosts = OF_SLOW_HOSTS if options.no_outer_steps else OF_HOSTS
    others = [kind for kind in PRIORITY if kind not in of_hosts]
    taken = [at.folder / host / f"{name}.steps" for host in HOSTS]
    processes = [at.start(SERVERS, [*words, "--name", SERVERS], {"kinds": others}, log=name)]
    for host, file in zip(HOSTS, taken, strict=True):
        orders = {
            "kinds": of_hosts,
            "step_seconds": options.step_seconds,
            "steps_taken": str(file),
        }
        processes.append(at.start(host, [*words, "--name", host], orders, log=name))
    moments: list[Moment] = []
    try:
        while len(moments) <= options.until:
            reached = run.phases_reached
            if reached >= len(moments) and run.ledger.queue.task_counts().get(("train", MODULAR)):
                moments.append(moment(at))
            check(processes, at)
            time.sleep(LOOK_SECONDS)
        while options.until == config.phases and not run.ledger.queue.is_finished():
            check(processes, at)
            time.sleep(LOOK_SECONDS)
        perplexity = {e.phase: e.perplexity for e in run.ledger.facts.evaluations()}
    finally:
        for process in processes:
            process.kill()
            process.wait()
        run.ledger.close()
    traffic = traffic_of_a_phase(
        config,
        len(HOSTS),
        steps_elsewhere=options.no_outer_steps,
        phases=range(1, options.until),
    )
    return compared(options, config, moments, taken) | {
        **planned(config, options, traffic),
        "perplexity": {str(phase): round(perplexity[phase], 3) for phase in sorted(perplexity)},
        "hours": {
            str(phase): round((each.seconds - moments[0].seconds) / 3600, 5)
            for phase, each in enumerate(moments)
        },
    }


def begin(at: Site, name: str, config: RunConfig) -> tuple[Run, list[str]]:
    """The new run, and the command line of a worker."""
    address = Address.parse(f"{at.bucket}/{name.replace('+', '-')}")
    run, _ = create_or_open(address, config, None, at.database.url)
    return run, ["worker", "--run", str(address), "--database", at.database.url]


def planned(
    config: RunConfig, options: argparse.Namespace, traffic: dict[str, Traffic]
) -> dict[str, Any]:
    """The forecast of `dipaco plan` for a phase with these bytes."""
    time, of_phase = phase_time(config, machines(options), traffic), total(traffic.values())
    return {
        "planned_computing": round(time.computing, 4),
        "planned_seconds_of_a_phase": round(time.seconds, 2),
        "planned_down": round(of_phase.down),
        "planned_up": round(of_phase.up),
    }


def machines(options: argparse.Namespace) -> Machines:
    return Machines(
        workers=len(HOSTS),
        megabits=options.mbit,
        step_seconds=options.step_seconds,
        store_megabits=options.store_mbit,
        steps_elsewhere=options.no_outer_steps,
    )


def moment(at: Site) -> Moment:
    return Moment(
        time.time(),
        [at.host(name).link.carried for name in HOSTS],
    )


def check(processes: Sequence[Any], at: Site) -> None:
    """No process has failed."""
    for name, process in zip((SERVERS, *HOSTS), processes, strict=True):
        if process.poll() not in (None, 0):
            logs = sorted((at.folder / name).glob("*.log"), key=lambda file: file.stat().st_mtime)
            sys.exit(f"{name} ended with {process.returncode}:\n{logs[-1].read_text()[-2000:]}")


def compared(
    options: argparse.Namespace, config: RunConfig, moments: list[Moment], taken: list[Path]
) -> dict[str, Any]:
    """Results from the end of the first phase to the end of the last."""
    first, last, phases = moments[1], moments[-1], len(moments) - 2
    steps = [json.loads(line) for file in taken for line in file.read_text().splitlines()]
    within = [each for each in steps if first.seconds < each["at"] <= last.seconds]
    seconds, hosts = last.seconds - first.seconds, len(HOSTS)
    mean = phases * hosts
    down = sum(b[0] - a[0] for a, b in pairs(first, last)) / mean
    up = sum(b[1] - a[1] for a, b in pairs(first, last)) / mean
    computing_seconds = len(within) * options.step_seconds / mean
    processor_seconds = sum(each["processor_seconds_before"] for each in within) / mean
    all_seconds = seconds_over_link(computing_seconds + processor_seconds, down + up, options.mbit)
    return {
        "computing": round(sum(each["seconds"] for each in within) / (hosts * seconds), 4),
        "seconds_of_a_phase": round(seconds / phases, 2),
        "computing_by_phase": [
            round(
                sum(each["seconds"] for each in steps if a.seconds < each["at"] <= b.seconds)
                / (hosts * (b.seconds - a.seconds)),
                4,
            )
            for a, b in itertools.pairwise(moments[1:])
        ],
        # Above 1: this machine was too busy for the pace, and the steps took longer.
        "pace": round(
            sum(each["seconds"] for each in within) / max(1e-9, len(within) * options.step_seconds),
            3,
        ),
        "down": round(down),
        "up": round(up),
        # Bytes of a host from the beginning of the first phase.
        "carried": round(
            sum(b - a for ends in pairs(moments[0], last) for a, b in zip(*ends, strict=True))
            / hosts
        ),
        "processor_seconds": round(processor_seconds, 2),
        "computing_beside_nothing_else": round(computing_seconds / all_seconds, 4),
        "parameters": num_parameters(config.model),
    }


def pairs(first: Moment, last: Moment) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(zip(first.carried, last.carried, strict=True))


# --- lock-step --------------------------------------------------------------------------------


def measure_lock_step(options: argparse.Namespace, at: Site, way: str) -> dict[str, Any]:
    """Perplexities of `data_parallel`, hours by exchanges over the links."""
    config = config_of(options, way)
    size = VALUE_BYTES * num_parameters(config.model)
    before = [at.host(name).link.carried for name in HOSTS]
    exchanged = exchange(at, size, options.exchanges)
    after = [at.host(name).link.carried for name in HOSTS]
    perplexity = of_baseline(at, way, config)
    steps = config.inner.steps
    seconds = steps * (options.step_seconds + exchanged)
    carried = [
        sum(b[i] - a[i] for a, b in zip(before, after, strict=True))
        * (steps / options.exchanges / len(HOSTS))
        for i in range(2)
    ]
    return {
        "computing": round(steps * options.step_seconds / seconds, 4),
        "seconds_of_a_phase": round(seconds, 2),
        "seconds_of_an_exchange": round(exchanged, 3),
        "down": round(carried[0]),
        "up": round(carried[1]),
        "carried": round(options.phases * sum(carried)),
        "parameters": num_parameters(config.model),
        **planned(
            config,
            options,
            lock_step_traffic(config, len(HOSTS), range(1, options.phases)),
        ),
        "perplexity": perplexity,
        "hours": {
            str(phase): round(phase * seconds / 3600, 5) for phase in range(options.phases + 1)
        },
    }


def measure_one_machine(options: argparse.Namespace, at: Site, way: str) -> dict[str, Any]:
    """Perplexities of `dense_equal_tokens`, hours by the pace of its steps."""
    config = config_of(options, way)
    perplexity, seconds = of_baseline(at, way, config), config.inner.steps * options.step_seconds
    return {
        "computing": 1.0,
        "seconds_of_a_phase": round(seconds, 2),
        "down": 0,
        "up": 0,
        "carried": 0,
        "parameters": num_parameters(config.model),
        **planned(config, options, {"gradients": NOTHING}),
        "perplexity": perplexity,
        "hours": {phase: round(int(phase) * seconds / 3600, 5) for phase in perplexity},
    }


MEASURES = {LOCK_STEP: measure_lock_step, ONE_MACHINE: measure_one_machine}


def of_baseline(at: Site, way: str, config: RunConfig) -> dict[str, float]:
    """Phase -> perplexity of a way's baseline, which the servers' host trains."""
    run, words = begin(at, way, config)
    process = at.start(SERVERS, [*words, "--name", SERVERS], log=way)
    try:
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
        if process.returncode:
            sys.exit((at.folder / SERVERS / f"{way}.log").read_text()[-2000:])
        perplexity = {
            e.phase: e.perplexity for e in run.ledger.facts.evaluations() if e.arm == BASELINE[way]
        }
    finally:
        process.kill()
        process.wait()
        run.ledger.close()
    return {str(phase): round(perplexity[phase], 3) for phase in sorted(perplexity)}


def exchange(at: Site, size: int, times: int) -> float:
    """The median seconds in which every host sends `size` bytes and then receives as many."""
    with at.host(SERVERS).entered(), socket.create_server((at.host(SERVERS).address, 0)) as server:
        address = server.getsockname()
        clients = []
        for name in HOSTS:
            with at.host(name).entered():
                clients.append(socket.create_connection(address, timeout=600.0))
        members = [server.accept()[0] for _ in HOSTS]
    all_sent = threading.Barrier(len(HOSTS))
    seconds = []
    with contextlib.ExitStack() as stack:
        for each in (*clients, *members):
            stack.enter_context(each)

        def reduce(member: socket.socket) -> None:
            for _ in range(times):
                receive(member, size)
                all_sent.wait(600.0)
                member.sendall(bytes(size))

        def client(link: socket.socket) -> None:
            link.sendall(bytes(size))
            receive(link, size)

        reducers = [threading.Thread(target=reduce, args=(each,)) for each in members]
        for each in reducers:
            each.start()
        for _ in range(times):
            began = time.monotonic()
            sending = [threading.Thread(target=client, args=(each,)) for each in clients]
            for each in sending:
                each.start()
            for each in sending:
                each.join()
            seconds.append(time.monotonic() - began)
        for each in reducers:
            each.join()
    return statistics.median(seconds)


def receive(link: socket.socket, size: int) -> None:
    while size:
        got = len(link.recv(min(size, CHUNK)))
        if not got:
            raise ConnectionError("the other side has gone")
        size -= got


# --- for a person -----------------------------------------------------------------------------


def line(way: str, result: dict[str, Any]) -> str:
    last = max(result["perplexity"], key=int, default="")
    return (
        f"{way:<16} computing {result['computing']:.1%} (plan {result['planned_computing']:.1%}), "
        f"a phase {result['seconds_of_a_phase']:.1f} s (plan "
        f"{result['planned_seconds_of_a_phase']:.1f}), down {num_bytes(result['down'])} (plan "
        f"{num_bytes(result['planned_down'])}), up {num_bytes(result['up'])} (plan "
        f"{num_bytes(result['planned_up'])}), perplexity {result['perplexity'].get(last)}"
    )


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown: what was measured, and in brackets what the plan says of it."""
    columns = (
        ("computing", "planned_computing", "{:.1%}".format),
        ("seconds_of_a_phase", "planned_seconds_of_a_phase", "{:.1f} s".format),
        ("down", "planned_down", num_bytes),
        ("up", "planned_up", num_bytes),
    )
    rows = [
        "| way | computing | a phase | down | up | beside nothing else | perplexity |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    for way, result in results.items():
        cells = [f"{show(result[name])} ({show(result[plan])})" for name, plan, show in columns]
        alone = result.get("computing_beside_nothing_else", result["computing"])
        last = max(result["perplexity"], key=int, default="")
        cells += [f"{alone:.1%}", str(result["perplexity"].get(last))]
        rows.append(f"| {way} | {' | '.join(cells)} |")
    return rows


def draw(results: dict[str, dict[str, Any]], megabits: float, file: Path) -> None:
    """Perplexity against minutes, and the bytes that a machine's interface has carried. The file's
    ending chooses the format.
    """
    from dipaco.evaluation.style import DILOCO, log_ticks, name_beside, styled, tidy

    arms = {**BASELINE, "diloco": DILOCO}
    drawn: list[str] = []
    with styled(9, 4.5) as figure:
        axes = figure.subplots()
        for way, result in results.items():
            arm = arms.get(way.partition("+")[0], MODULAR)
            look = nth_look(arm, drawn.count(arm))
            drawn.append(arm)
            perplexity = result["perplexity"]
            axes.plot(
                [60 * result["hours"][phase] for phase in perplexity], list(perplexity.values()),
                color=look.colour, linestyle=look.dashes, marker=look.mark,
                label=_with_bytes(way, result["carried"]),
            )  # fmt: skip
        for which, of, times in (("x", "hours", 60), ("y", "perplexity", 1)):
            values = itertools.chain.from_iterable(each[of].values() for each in results.values())
            log_ticks(axes, which, [times * value for value in values])
        axes.set(
            xlabel=f"minutes, four machines on links of {megabits:g} Mbit/s",
            ylabel="test perplexity",
        )
        tidy(axes)
        name_beside(axes)
        figure.savefig(file)


def nth_look(arm: str, number: int) -> Any:
    """The look of one of several contenders of an arm: its colour, with other dashes and marks."""
    from dipaco.evaluation.style import DASHES, LOOKS, MARKS, Look

    first = LOOKS[arm]
    if number == 0:
        return first
    others = [mark for mark in MARKS if mark != first.mark]
    dashes = [each for each in DASHES if each != first.dashes]
    return Look(
        first.colour, dashes[(number - 1) % len(dashes)], others[(number - 1) % len(others)]
    )


def _with_bytes(way: str, carried: int) -> str:
    return f"{way}: {num_bytes(carried)} a machine" if carried else f"{way}: no link"


if __name__ == "__main__":
    main()
