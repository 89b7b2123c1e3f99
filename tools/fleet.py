"""A real training by hosts with real links, of which some fail. Its result must equal an
undisturbed run bit for bit.

    python tools/fleet.py --hosts 6 --mbit 20
    python tools/fleet.py --hosts 4 --silent-seconds 10 --only "link silent,link only up"

Every host is a network namespace behind a link of `--mbit` megabits a second, with its own folder,
host name and cache. PostgreSQL and the bucket are behind another link. Hosts share nothing else but
compiled programs. The clocks of the hosts are hours apart from the start (`LD_PRELOAD`, a C
compiler). Then, one after the other, each to a host that holds a task:

- its link drops everything in silence for `--silent-seconds`, and is whole again, and no connection
  is reset, which a proxy cannot show;
- only what goes up arrives, or only what goes down, for as long;
- its power and link fail in the middle of an upload, and it starts again;
- all processes of the database's host get SIGKILL, and it starts again with its disk;
- its link drops everything for ever: others must do its task.

A fault counts only when it is proved: packets were lost, the process is gone in the middle of an
object, another server process answers, wrong times were read. `never` names the others. Every
module at every phase is then compared with Algorithm 1 (`replay.py`). A task takes `--task-seconds`
on any machine until all faults have happened; `goodput` divides the recorded tasks by the number
that the hosts could have recorded.

Needs root, iproute2, iptables and PostgreSQL, and says which of them is missing. The last line is
JSON.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from storms import checker
from storms.config import write_config
from storms.fleet import StormFault
from storms.host_fleet import HostFleet
from storms.link_faults import faults_of
from support import wall_clock
from support.command_line import parser_of
from support.scratch import scratch
from support.sites import site, why_no_site

from dipaco.overrides import load_config
from dipaco.workers.replay import differences

CLOCKS = "clocks hours apart"


def main() -> None:
    options = parse()
    if (problem := why_no_site()) is not None:
        print(f"Skipped: {problem}")
        print(json.dumps({"skipped": problem}))
        return
    names = [f"host-{number}" for number in range(options.hosts)]
    with scratch(options.folder, "fleet-") as folder:
        file = write_config(
            folder / "config.py", experts=options.experts, phases=options.phases,
            steps=options.steps, width=options.width, documents=40,
        )  # fmt: skip
        clock = wall_clock.build(folder)
        if clock is None:
            print("There is no C compiler here: the hosts' clocks agree.")
        with site(names, folder, options.mbit, options.store_mbit) as at:
            fleet = HostFleet(load_config(file, []), at, names, options, clock)
            faults = chosen(fleet, options)
            seconds = fleet.work(iter(faults))
            print(report(fleet, [name for name, _ in faults], seconds))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--mbit", type=float, default=20.0, help="of every host, each way (20)")
    parser.add_argument("--store-mbit", type=float, help="of the servers' host; else unshaped")
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="of training where nothing happens (2)"
    )
    parser.add_argument("--silent-seconds", type=float, default=60.0, help="of a failed link (60)")
    parser.add_argument("--fault-every", type=float, default=2.0, metavar="S", help="a pause (2)")
    parser.add_argument("--faults", type=int, help="at most so many")
    parser.add_argument("--only", metavar="NAMES", help="these faults, separated by commas")
    parser.add_argument("--lease-seconds", type=float, default=4.0)
    parser.add_argument("--experts", type=int, default=3, help="of each level: K x K paths (3)")
    parser.add_argument("--phases", type=int, help="else as fits the minutes")
    parser.add_argument("--steps", type=int, default=8, help="inner steps of a phase (8)")
    parser.add_argument("--width", type=int, default=32, help="d_model (32)")
    parser.add_argument("--task-seconds", type=float, default=4.0, help="of a path's phase (4)")
    parser.add_argument(
        "--patience-seconds", type=float, default=300.0,
        help="within which the task of a lost host must be another's (300)",
    )  # fmt: skip
    parser.add_argument("--most-minutes", type=float, default=60.0, help="then it gives up (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the victims")
    parser.add_argument("--folder", help="where everything is put, and removed afterwards")
    options = parser.parse_args(words)
    if options.hosts < 2 or options.mbit <= 0 or options.silent_seconds <= 0:
        parser.error("--hosts must be 2 or more, --mbit and --silent-seconds above 0")
    if options.phases is None:
        seconds_of_a_phase = options.task_seconds * -(-(options.experts**2) // options.hosts)
        options.phases = max(2, round(60 * options.minutes / seconds_of_a_phase))
    return options


def chosen(fleet: HostFleet, options: argparse.Namespace) -> list[StormFault]:
    """Each fault once, or the named ones."""
    faults = dict(faults_of(fleet, random.Random(options.seed)))
    names = list(faults) if options.only is None else [n.strip() for n in options.only.split(",")]
    if unknown := [name for name in names if name not in faults]:
        raise SystemExit(f"No such faults here: {unknown}. There are: {', '.join(faults)}")
    return [(name, faults[name]) for name in names][: options.faults]


def report(fleet: HostFleet, expected: list[str], seconds: float) -> str:
    """The text for a person, whose last line is JSON."""
    if fleet.clocks:
        expected = [*expected, CLOCKS]
        # The first host's is right.
        if all(clock.wrong_readings for clock in list(fleet.clocks.values())[1:]):
            fleet.faults[CLOCKS] += 1
    run = fleet.open()
    try:
        different = differences(run)
        lost, twice = checker.rows_lost_and_twice(run)
    finally:
        run.ledger.close()
    never = [name for name in expected if not fleet.faults[name]]
    answer: dict[str, Any] = {
        "digest_equal": not different,
        "documents_lost": lost,
        "documents_twice": twice,
        "faults": dict(fleet.faults),
        "never": never,
        "goodput": round(fleet.path_phases * fleet.options.task_seconds / fleet.alive_seconds, 3),
        "hosts": fleet.options.hosts,
        "mbit": fleet.options.mbit,
        "seconds": round(seconds, 1),
    }
    lines = [f"{number:4} x {name}" for name, number in _proved(fleet)]
    lines.append(f"{fleet.faults.total()} faults in {seconds:.0f} s of training")
    if never:
        lines.append(f"never happened: {', '.join(never)}")
    return "\n".join([*lines, *different[:5], json.dumps(answer)])


def _proved(fleet: HostFleet) -> Iterator[tuple[str, int]]:
    return iter(sorted(fleet.faults.items()))


if __name__ == "__main__":
    main()
