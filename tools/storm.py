"""A storm: a real training by real processes that are killed, stopped and lied to; the result must
be, bit for bit, that of a run in which nothing happened.

    python tools/storm.py --minutes 1
    python tools/storm.py --minutes 10 --workers 4 --kill-every 60 --database postgresql://HOST/NAME
    python tools/storm.py --minutes 3 --database postgresql --store s3
        on a PostgreSQL and an S3 store that are started here, and fail as well
    python tools/storm.py --minutes 1 --quorum 0.5 --grace-seconds 1
        modules step while a path is late; compared with `algorithm/variants.py`, see below
    python tools/storm.py --only "SIGKILL,contribution: NaN"
    python tools/storm.py --workers 8 --experts 4 --phases 16 --steps 300 --lease-seconds 10 \\
        --only SIGKILL --no-named-points --kill-every 120
        what one kill in two minutes costs

First the fault-free run, by as many workers; then the same run again in the storm. Faults come in
turn, each once and then at random (`storm_faults.py`; those of one run are listed with `--list`).
One worker at a time also dies by itself at a named point: claim, inner steps, snapshot, between
save and record, inside record, before sweep, ... A fault counts only when it is proved: the process
is gone, the file was changed, the answer was given. A false contribution must be refused, and
`dipaco status --json` must say why.

Then a checker that knows nothing of the scheduler compares what was recorded with the plan: the
digest of every module at every phase, every path's every phase once and with the right rows, and
every module made of exactly its paths' contributions. With a quorum, who is late is luck, and there
is no fault-free run to compare with: the run is done once more by `algorithm/variants.py`, with what each
step is recorded to have taken (`replay.py`).

`goodput` is tokens committed per second of training, over that of the fault-free run; start-up of
processes and lease waits are in it, announced outages of the store and the database are not (they
are `outage_seconds`). `participation` is the share of live workers' time in tasks that were
committed. The last line is one JSON object.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

from misbehave import CORRUPTIONS
from replay import differences
from storms import checker as storm_checker
from storms import faults as storm_faults
from storms.fleet import Fleet
from storms.places import Places, places
from support import wall_clock
from support.scratch import scratch

from dipaco.config import MODULAR
from dipaco.overrides import load_config
from dipaco.runs.run import Run

CONFIG = '''"""K x K paths on the toy corpus, for a storm."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    return RunConfig(
        name="storm",
        model=ModelConfig(
            vocab_size=300, d_model={d_model}, num_layers=2, num_heads=2, d_ff={d_ff}, max_length=64
        ),
        topology=Topology(
            levels=(
                Level(name="early", parts=("embed", "block_00"), experts={experts}),
                Level(
                    name="late", parts=("block_01", "final_norm", "head"), experts={experts}
                ),
            )
        ),
        data=DataConfig(
            sources=("toy:?clusters={paths}&documents={documents}&words=60",),
            vocab_size=300,
            length=64,
            valid_fraction=0.1,
            router_fraction=0.2,
            processes=1,
        ),
        base=BaseSettings(steps=4, steps_per_phase=2),
        phases={phases},
        inner=InnerSettings(steps={steps}, batch_size=16, learning_rate=3e-3, warmup_steps=1),
        outer=OuterSettings(quorum={quorum}, grace_seconds={grace_seconds}),
        evaluation=EvaluationSettings(batch_size=16, every_phases={phases}),
        baselines=(),
    )
'''


def main() -> None:
    options = parse()
    with (
        scratch(options.folder, "storm-") as folder,
        places(options, folder) as at,
    ):
        file = at.folder / "config.py"
        file.write_text(
            CONFIG.format(
                phases=options.phases, steps=options.steps, d_model=options.width,
                d_ff=3 * options.width // 2, quorum=options.quorum,
                grace_seconds=options.grace_seconds, experts=options.experts,
                paths=options.experts**2, documents=100 * options.experts**2,
            )
        )  # fmt: skip
        print(brew(options, file, at))


def brew(options: argparse.Namespace, file: Path, at: Places) -> str:
    """The runs, one after the other, and what came of them."""
    config, clock = load_config(file, []), wall_clock.build(at.folder)
    if clock is None:
        print("There is no C compiler here: wall clocks do not jump.")
    storm = Fleet("storm", config, file, at, options, clock)
    if options.list:
        return "\n".join(storm_faults.names_of(storm))
    only = None if options.only is None else [name.strip() for name in options.only.split(",")]
    faults = storm_faults.storm(storm, random.Random(options.seed), only)
    calm, calm_seconds = None, None
    if options.quorum == 1:
        calm = Fleet("calm", config, file, at, options, None)
        calm_seconds = calm.work(faults=None)
    return report(calm, storm, calm_seconds, storm.work(faults))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="about how long each run takes")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=2, help="of each level: K x K paths")
    parser.add_argument(
        "--kill-every", type=float, default=6.0, metavar="S", help="a fault every S"
    )
    parser.add_argument("--faults", type=int, help="at most so many; then the wind drops")
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
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument(
        "--database",
        help="postgresql = one started here; postgresql://... or env:VARIABLE; else SQLite",
    )
    parser.add_argument("--store", help="s3 = one started here; s3://... or gs://...; else folders")
    parser.add_argument(
        "--outage-seconds", type=float, default=10.0, help="of the store, or the database"
    )
    parser.add_argument("--folder", help="where the runs are put, and removed afterwards")
    options = parser.parse_args()
    if options.store is not None and options.database is None:
        parser.error("a run in a bucket needs a database: add --database postgresql")
    if options.phases is None:
        options.phases = max(3, round(options.minutes * 10))
    return options


def report(
    calm: Fleet | None, storm: Fleet, calm_seconds: float | None, storm_seconds: float
) -> str:
    """What a person reads; the last line is JSON."""
    with closing(storm.open()) as here:
        is_equal = is_as_it_should_be(calm, here)
        lost, twice = storm_checker.rows_lost_and_twice(here)
        tokens = here.ledger.training_totals(MODULAR)["tokens"]
        members = here.ledger.members.list()
        refusals = here.ledger.redos.num_refusals()
        late = sum(map(len, here.ledger.quorums.late(MODULAR).values()))
    unsaid = lies_unsaid(storm)
    live = sum(member.live_seconds for member in members)
    committed = sum(member.committed_seconds for member in members)
    trained_seconds = max(storm_seconds - storm.outage_seconds, 1e-9)
    answer: dict[str, Any] = {
        "digest_equal": is_equal,
        "goodput": None if calm_seconds is None else round(calm_seconds / trained_seconds, 3),
        "participation": round(committed / max(live, 1e-9), 3),
        "faults": dict(storm.faults),
        "documents_lost": lost,
        "documents_twice": twice,
        "refusals": refusals,
        "lies_refused": len(storm.lies) - len(unsaid),
        "lies_unsaid": unsaid,
        "late": late,
        "tokens": tokens,
        "calm_seconds": None if calm_seconds is None else round(calm_seconds, 1),
        "storm_seconds": round(storm_seconds, 1),
        "outage_seconds": round(storm.outage_seconds, 1),
    }
    lines = [f"{number:4} x {name}" for name, number in sorted(storm.faults.items())]
    lines.append(
        f"{storm.faults.total()} faults in {storm_seconds:.0f} s; "
        + ("" if calm_seconds is None else f"calm {calm_seconds:.0f} s; ")
        + f"{len(members)} workers came and went; {refusals} objects were made again"
    )
    return "\n".join([*lines, json.dumps(answer)])


def is_as_it_should_be(calm: Fleet | None, here: Run) -> bool:
    """The bits of the calm or, where there is none, of Algorithm 1."""
    if calm is None:
        return not differences(here)
    with closing(calm.open()) as there:
        return storm_checker.digests(there) == storm_checker.digests(here)


def lies_unsaid(storm: Fleet) -> list[str]:
    """The false contributions of which `dipaco status --json` does not say why they were refused,
    one for each.
    """
    words = [*storm.command("status")[:4], "--run", str(storm.address), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ))
    reasons = [refusal["reason"] for refusal in json.loads(done.stdout)["refusals"]]
    unsaid = []
    for lie in storm.lies:
        said = next((reason for reason in reasons if CORRUPTIONS[lie] in reason), None)
        reasons.remove(said) if said is not None else unsaid.append(lie)
    return unsaid


@contextlib.contextmanager
def closing(run: Run) -> Generator[Run]:
    try:
        yield run
    finally:
        run.ledger.close()


if __name__ == "__main__":
    main()
