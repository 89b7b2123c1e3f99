"""Measures what a machine sends and fetches in a phase, by codec, in bits per parameter of its
path.

    python tools/bench_bytes.py
    python tools/bench_bytes.py --experts 4 --codecs none,int8 --width 64
    python tools/bench_bytes.py --codecs int8 --phases 9 --send-snapshots-every 4

K x K paths are trained on as many machines, which share nothing but a bucket (in memory, here). One
more machine does all else, outer steps above all. Everything that passes between a machine and the
bucket is counted, from the second phase on: at the first, every machine fetches whole. `recorded`
is what the ledger says that a machine fetched, which the report and the metrics show. The last line
is one JSON object.
"""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from support.command_line import parser_of
from support.memory_bucket import Machine, Machines
from support.scratch import scratch

from dipaco.config import RunConfig
from dipaco.model.config import num_parameters
from dipaco.outer.config import CODECS
from dipaco.overrides import load_config
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs
from dipaco.topology import Topology

TOY = Path(__file__).parents[1] / "configs" / "toy.py"
COLUMNS = {  # Each column counts these kinds in this direction.
    "modules down": ("down", ("modules", "outer_states")),
    "contributions down": ("down", ("contributions",)),
    "contributions up": ("up", ("contributions",)),
    "snapshots up": ("up", ("snapshots",)),
}


class Row(NamedTuple):
    """Bits a parameter of a path and phase."""

    codec: str
    bits: dict[str, float]  # a path's machine, by column
    recorded_down: float
    executor_down: float  # all modules, also per parameter of a path
    executor_up: float


def main() -> None:
    options = parse()
    rows = []
    programs = Programs(config_of(options, "none"))  # compiled once for all
    with scratch(options.folder, "bytes-") as folder:
        for name in options.codecs.split(","):
            rows.append(measure(config_of(options, name), programs, folder / name))
            print(f"{name}: measured", file=sys.stderr)
    names = ["codec", *COLUMNS, "recorded down", "executor down", "executor up"]
    print(f"| {' | '.join(names)} |\n| :-- |{' --: |' * (len(names) - 1)}")
    for row in rows:
        values = *row.bits.values(), row.recorded_down, row.executor_down, row.executor_up
        cells = [row.codec, *(f"{value:.2f}" for value in values)]
        print(f"| {' | '.join(cells)} |")
    print(
        json.dumps(
            {row.codec: {name: round(bits, 3) for name, bits in row.bits.items()} for row in rows}
        )
    )


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--codecs", default=",".join(CODECS), help="outer.codec, by commas")
    parser.add_argument("--experts", type=int, default=2, help="of each level: K x K paths")
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument(
        "--send-snapshots-every", type=int, default=1, help="retention.send_snapshots_every"
    )
    parser.add_argument("--width", type=int, default=64, help="d_model")
    parser.add_argument("--folder", help="where the runs are put, and removed afterwards")
    return parser.parse_args()


def config_of(options: argparse.Namespace, name: str) -> RunConfig:
    """The toy run with one codec."""
    toy = load_config(TOY)
    levels = [dataclasses.replace(level, experts=options.experts) for level in toy.topology.levels]
    width = options.width
    return dataclasses.replace(
        toy,
        model=dataclasses.replace(toy.model, d_model=width, d_ff=3 * width // 2),
        topology=Topology(levels=tuple(levels)),
        phases=options.phases + 1,  # the last snapshot is sent in any case
        inner=dataclasses.replace(toy.inner, steps=2),
        outer=dataclasses.replace(toy.outer, codec=name),
        evaluation=dataclasses.replace(toy.evaluation, every_phases=options.phases + 1),
        retention=dataclasses.replace(
            toy.retention, contributions=2, send_snapshots_every=options.send_snapshots_every
        ),
        baselines=(),
    )


def measure(config: RunConfig, programs: Programs, folder: Path) -> Row:
    """Trains a run until before its last phase, on machines of its paths and one executor."""
    end = config.phases - 1
    run, _ = create_or_open(folder / "run", config)
    run.programs = programs
    machines = Machines(run, folder / "machines")
    machines.work_until(1)
    paths, executor = list(machines.of_path.values()), machines.executor
    recorded = run.ledger.progress.bytes_by_kind()["modules_fetched"]
    before = {machine: counts_of(machine) for machine in (*paths, executor)}
    machines.work_until(end)
    moved = {machine: counts_of(machine) - before[machine] for machine in before}
    values = num_parameters(config.model) * (end - 1)

    def bits(of: list[Machine], direction: str, kinds: tuple[str, ...]) -> float:
        num_bytes = sum(moved[machine][direction, kind] for machine in of for kind in kinds)
        return 8 * num_bytes / values / len(of)

    exchanged = ("modules", "outer_states", "contributions")
    recorded = run.ledger.progress.bytes_by_kind()["modules_fetched"] - recorded
    run.ledger.close()
    return Row(
        config.outer.codec,
        {name: bits(paths, *column) for name, column in COLUMNS.items()},
        8 * recorded / values / len(paths),
        bits([executor], "down", exchanged),
        bits([executor], "up", exchanged),
    )


def counts_of(machine: Machine) -> Counter[tuple[str, str]]:
    """(direction, kind) -> bytes so far."""
    bucket = machine.bucket
    of = {"down": bucket.down, "up": bucket.up}
    return Counter({(way, kind): n for way, counts in of.items() for kind, n in counts.items()})


if __name__ == "__main__":
    main()
