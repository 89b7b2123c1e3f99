r"""A storm: a real training by real processes that are killed, stopped and sent wrong data. The
result must equal an undisturbed run bit for bit.

    python tools/storm.py --minutes 1
    python tools/storm.py --minutes 10 --workers 4 --kill-every 60 --database postgresql://HOST/NAME
    python tools/storm.py --minutes 3 --database postgresql --store s3
        on a PostgreSQL and an S3 store that are started here, and fail as well
    python tools/storm.py --minutes 1 --quorum 0.5 --grace-seconds 1
        modules step while a path is late; compared with `algorithm/variants.py`, see below
    python tools/storm.py --minutes 1 --set outer.codec=int8 --database postgresql --store s3
        machines fetch modules as contributions, and compute the steps themselves
    python tools/storm.py --minutes 1 --set retention.send_snapshots_every=3 --database postgresql \
        --store s3
        two of three snapshots stay on the machine that made them
    python tools/storm.py --only "SIGKILL,contribution: NaN" --page storm.html
    python tools/storm.py --set outer.codec=int2
    python tools/storm.py --config configs/tiny_16x16.py --workers 8 --replay --faults 2 \
        --only SIGKILL --task-seconds 20
        256 paths with private parts

The fault-free run comes first, by as many workers, and then the same run in the storm. Faults come
in turn, each once and then at random (`storms/faults.py`, and `--list` names a run's faults). One
worker at a time also dies by itself at a named point: claim, inner steps, snapshot, between save
and record, inside record, before sweep, ... A fault counts only when it is proved: the process is
gone, the file was changed, the answer was given. A corrupted contribution must be refused, and
`dipaco status --json` must say why.

Then a checker that knows nothing of the scheduler compares the records with the plan: the digest of
every module at every phase, every path's every phase once and with the right rows, and every module
made of exactly its paths' contributions. With a quorum, which paths are late depends on timing, so
no fault-free run is comparable: the run is done once more by `algorithm/variants.py`, with the
contributions that each step is recorded to have taken (`replay.py`). `--replay` compares so without
a quorum as well, in half of the time.

Training tasks are paced: each takes so long that the training takes `--minutes` on any machine
where nothing happens. Once all faults have happened (`--faults`) they are no longer slowed. `never`
names the faults that found no moment. The cost of preemption is measured by `goodput.py`. The last
line is one JSON object.
"""

import argparse
import contextlib
import json
import math
import os
import random
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

from storms import checker, faults
from storms.config import write_config
from storms.corruptions import CORRUPTIONS
from storms.fleet import Fleet
from storms.places import Places, places
from support import wall_clock
from support.command_line import parser_of
from support.scratch import scratch

from dipaco.config import MODULAR
from dipaco.dashboard.page import export
from dipaco.overrides import load_config
from dipaco.runs.run import Run
from dipaco.workers.replay import differences


def main() -> None:
    options = parse()
    with (
        scratch(options.folder, "storm-") as folder,
        places(options, folder) as at,
    ):
        file = options.config or write_config(
            at.folder / "config.py", experts=options.experts, phases=options.phases,
            steps=options.steps, width=options.width, quorum=options.quorum,
            grace_seconds=options.grace_seconds, settings=options.settings,
        )  # fmt: skip
        print(run_both(options, file, at))


def run_both(options: argparse.Namespace, file: Path, at: Places) -> str:
    """Does the run without faults and the run in the storm, and returns their comparison as
    text.
    """
    config, clock = load_config(file, []), wall_clock.build(at.folder)
    if clock is None:
        print("There is no C compiler here: wall clocks do not jump.")
    storm = Fleet("storm", config, file, at, options, clock)
    if options.list:
        return "\n".join(faults.names_of(storm))
    only = None if options.only is None else [name.strip() for name in options.only.split(",")]
    of_storm = faults.sequence(storm, random.Random(options.seed), only)
    expected = (only or faults.names_of(storm))[: options.faults]
    undisturbed, undisturbed_seconds = None, None
    if not options.replay:
        undisturbed = Fleet("undisturbed", config, file, at, options, None)
        undisturbed_seconds = undisturbed.work(faults=None)
    return report(undisturbed, storm, undisturbed_seconds, storm.work(of_storm), expected)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="that the training takes where nothing happens"
    )
    parser.add_argument(
        "--task-seconds", type=float, help="of a path's phase; else as fits the minutes"
    )
    parser.add_argument(
        "--config", type=Path, help="trained in place of the toy run with K x K paths"
    )
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=2, help="of each level: K x K paths")
    parser.add_argument(
        "--kill-every", type=float, default=6.0, metavar="S", help="a fault every S"
    )
    parser.add_argument("--faults", type=int, help="at most so many faults")
    parser.add_argument("--only", metavar="NAMES", help="these faults, separated by commas")
    parser.add_argument("--list", action="store_true", help="the faults that there are; no run")
    parser.add_argument(
        "--no-named-points", dest="named_points", action="store_false",
        help="no worker dies by itself",
    )  # fmt: skip
    parser.add_argument("--lease-seconds", type=float, default=4.0)
    parser.add_argument("--phases", type=int, help="of training; else as fits the minutes")
    parser.add_argument("--steps", type=int, default=20, help="inner steps of a phase")
    parser.add_argument("--width", type=int, default=32, help="d_model")
    parser.add_argument("--quorum", type=float, default=1.0, help="outer.quorum")
    parser.add_argument("--grace-seconds", type=float, default=1.0, help="outer.grace_seconds")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="of the config, as `outer.codec=int8`; as often as there are settings",
    )  # fmt: skip
    parser.add_argument(
        "--replay", action="store_true",
        help="compare with Algorithm 1 in one process instead of a fault-free run; always so with "
        "a quorum",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument(
        "--database",
        help="postgresql = one started here; postgresql://... or env:VARIABLE; else SQLite",
    )
    parser.add_argument("--store", help="s3 = one started here; s3://... or gs://...; else folders")
    parser.add_argument(
        "--outage-seconds", type=float, default=10.0, help="of the store, or the database"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE",
        help="also write the page of `dipaco dashboard --export`, to look at what happened",
    )  # fmt: skip
    parser.add_argument("--folder", help="where the runs are put, and removed afterwards")
    options = parser.parse_args()
    if options.store is not None and options.database is None:
        parser.error("a run in a bucket needs a database: add --database postgresql")
    options.replay |= options.quorum < 1
    if options.phases is None:
        options.phases = max(3, round(options.minutes * 10))
    if options.task_seconds is None:
        one_after_the_other = options.phases * math.ceil(options.experts**2 / options.workers)
        options.task_seconds = 60 * options.minutes / one_after_the_other
    return options


def report(
    undisturbed: Fleet | None,
    storm: Fleet,
    undisturbed_seconds: float | None,
    storm_seconds: float,
    expected: list[str],
) -> str:
    """The text for a person, whose last line is JSON. `expected` names faults that should have
    happened.
    """
    with closing(storm.open()) as here:
        is_equal = has_expected_bits(undisturbed, here)
        lost, twice = checker.rows_lost_and_twice(here)
        tokens = here.ledger.progress.training_totals(MODULAR).tokens
        members = here.ledger.members.list()
        refusals = here.ledger.redos.num_refusals()
        late = sum(map(len, here.ledger.quorums.late(MODULAR).values()))
    unexplained = corruptions_without_a_reason(storm)
    live = sum(member.live_seconds for member in members)
    committed = sum(member.committed_seconds for member in members)
    never = [name for name in expected if name not in storm.faults]
    calm_seconds, beside = None, ""
    if undisturbed_seconds is not None:
        calm_seconds = round(undisturbed_seconds, 1)
        beside = f"without faults {undisturbed_seconds:.0f} s; "
    if storm.options.page is not None:
        with closing(storm.open()) as here:
            export(here, storm.options.page)
    answer: dict[str, Any] = {
        "digest_equal": is_equal,
        "participation": round(committed / max(live, 1e-9), 3),
        "faults": dict(storm.faults),
        "never": never,
        "documents_lost": lost,
        "documents_twice": twice,
        "refusals": refusals,
        "lies_refused": len(storm.corruptions) - len(unexplained),
        "lies_unsaid": unexplained,
        "late": late,
        "tokens": tokens,
        "calm_seconds": calm_seconds,
        "storm_seconds": round(storm_seconds, 1),
        "outage_seconds": round(storm.outage_seconds, 1),
    }
    lines = [f"{number:4} x {name}" for name, number in sorted(storm.faults.items())]
    lines.append(
        f"{storm.faults.total()} faults in {storm_seconds:.0f} s; {beside}"
        f"{len(members)} workers came and went; {refusals} objects were made again"
    )
    if never:
        lines.append(f"never happened: {', '.join(never)}")
    return "\n".join([*lines, json.dumps(answer)])


def has_expected_bits(undisturbed: Fleet | None, here: Run) -> bool:
    """Those of the undisturbed run or, where there is none, of Algorithm 1."""
    if undisturbed is None:
        return not differences(here)
    with closing(undisturbed.open()) as there:
        return checker.digests(there) == checker.digests(here)


def corruptions_without_a_reason(storm: Fleet) -> list[str]:
    """The corrupted contributions for which `dipaco status --json` names no refusal, one for
    each.
    """
    words = [*storm.command("status")[:4], "--run", str(storm.address), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ))
    reasons = [refusal["reason"] for refusal in json.loads(done.stdout)["refusals"]]
    unexplained = []
    for corruption in storm.corruptions:
        phrases = CORRUPTIONS[corruption]
        found = next((r for r in reasons if any(phrase in r for phrase in phrases)), None)
        reasons.remove(found) if found is not None else unexplained.append(corruption)
    return unexplained


@contextlib.contextmanager
def closing(run: Run) -> Generator[Run]:
    try:
        yield run
    finally:
        run.ledger.close()


if __name__ == "__main__":
    main()
