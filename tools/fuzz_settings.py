"""Checks that runs of any settings equal Algorithm 1: settings are drawn together, and each run is
trained through tasks, ledger and store and then once more by `replay.py`.

    python tools/fuzz_settings.py --draws 200 --seed 0
    python tools/fuzz_settings.py --draws 100000 --minutes 10 --seed 7

A draw takes one value of every option in `OPTIONS`, some modules, and perhaps an own rule. Settings
that do not fit each other must be refused with a sentence, before anything is trained; such a draw
is counted as refused. The others train the toy text in the smallest model. Some paths, drawn as
well, are held back until nothing else is left to do: with a quorum they are late, with a delay the
others go on without them. Every module at every phase must have the bits of Algorithm 1. A run that
ends because its router left a path without documents is counted as `no text`.

`--draw N` does one draw alone, and prints what goes wrong with its traceback. The last line is one
JSON object; exit code 1: a draw was not equal, or neither refused nor trained.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from replay import differences
from support.command_line import parser_of
from support.scratch import scratch
from support.smallest_run import CONFIG, SHARINGS, worker_of

from dipaco.caches import cache_folder
from dipaco.config import MODULAR, RunConfig
from dipaco.control.planning.tasks import Task
from dipaco.data.errors import EmptyShard
from dipaco.errors import DipacoError
from dipaco.overrides import override
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs, use_compilation_cache
from dipaco.runs.rules import Rules, check_settings, record_of
from dipaco.runs.run import Run
from dipaco.topology import Level, Topology
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.errors import Preempted
from dipaco.workers.execution import execute

EXAMPLES = Path(__file__).parents[1] / "configs" / "examples"
TIED = (SHARINGS["2x2"][0], Level(name="late", parts=("block_00", "final_norm"), experts=2))
MODULES = {**SHARINGS, "tied_head": TIED, "one_path": SHARINGS["diloco"][:1]}
RULES: dict[str, tuple[str, str, str] | None] = {
    "none": None,
    "outer step": ("outer_step", "own_outer_step", "adam"),
    "router": ("router", "own_router", "by_direction"),
    "path loss": ("path_loss", "own_path_loss", "with_z_loss"),
}
# Option -> its values, each as `--set` takes them. The first is the default.
OPTIONS: dict[str, tuple[str, ...]] = {
    "codec": (
        "",
        "outer.codec=bfloat16",
        "outer.codec=int8",
        "outer.codec=int4",
        "outer.codec=int2",
    ),
    "path_share": ("", "outer.path_share=0.75", "outer.path_share=0.5", "outer.path_share=0.2"),
    "quorum": ("", "outer.quorum=0.5 outer.grace_seconds=0"),
    "delay": ("", "outer.delay=1", "outer.delay=2 outer.delay_merge=0"),
    "vocabulary_rows": ("", "outer.vocabulary_rows=holders"),
    "rescale_by_fan_in": ("", "outer.rescale_by_fan_in=false"),
    "weigh_by_documents": ("", "outer.weigh_by_documents=false"),
    "synchronous": ("", "outer.synchronous=true"),
    "router": (
        "",
        "routing.kind=product_kmeans",
        "routing.kind=random",
        "routing.kind=small_models",
    ),
    "alternations": (
        "",
        "routing.alternations=1",
        "routing.alternations=2",
        "routing.alternations=1,2",
    ),
    "rule": ("", "routing.rule=likelihood", "routing.rule=likelihood routing.shortlist=2"),
    "overlap": ("", "routing.overlap=2"),
    "optimizer": ("", "inner.optimizer=muon"),
    "hold_out": ("", "inner.hold_out=0.2"),
    "absent_tokens": ("", "inner.freeze_absent_tokens=true"),
    "accumulation": ("", "inner.accumulation_steps=2"),
    "rematerialise": ("", "inner.rematerialise=true"),
    "loss_chunks": ("", "inner.loss_chunks=2"),
    "base": ("", "base.steps=0"),
    "slices": ("", "data.slices=2"),
    "sent_snapshots": ("", "retention.send_snapshots_every=2"),
}
# Share of the draws where an option keeps its default. This one is refused beside most others.
KEEPS_DEFAULT = {"synchronous": 0.9}


class Draw(NamedTuple):
    """Settings that are tried together."""

    modules: str  # modules of `MODULES`
    rule: str  # of `RULES`
    settings: Mapping[str, str]  # option -> one of its values, where it is not the default

    def __str__(self) -> str:
        words = (f"modules={self.modules}", f"own_rule={self.rule}", *self.settings.values())
        return " ".join(words).replace("own_rule=none", "").replace("  ", " ").strip()


def main() -> int:
    options = parse()
    sys.path.insert(0, str(EXAMPLES))
    use_compilation_cache(cache_folder() / "compiled")
    counts = {"equal": 0, "refused": 0, "no text": 0}
    wrong: list[dict[str, Any]] = []
    begun = time.monotonic()
    numbers = range(options.draws) if options.draw is None else [options.draw]
    for number in numbers:
        if options.minutes is not None and time.monotonic() - begun > 60 * options.minutes:
            break
        dice = random.Random(f"{options.seed} {number}")
        draw = drawn(dice)
        with scratch(options.folder, "fuzz-") as folder:
            outcome, said = try_one(draw, folder / "run", dice.random())
        if outcome in counts:
            counts[outcome] += 1
        else:
            wrong.append({"draw": number, "settings": str(draw), "outcome": outcome})
        if outcome != "refused" or options.draw is not None:
            print(f"{number:5} {outcome:9} {draw}" + (f"\n{said}" if said else ""), flush=True)
    draws = sum(counts.values()) + len(wrong)
    answer = {"draws": draws, **counts, "wrong": wrong, "seed": options.seed}
    print(json.dumps({**answer, "seconds": round(time.monotonic() - begun)}))
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--draws", type=int, default=200, help="how many combinations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="begin no draw after so many")
    parser.add_argument("--draw", type=int, metavar="N", help="this draw alone")
    parser.add_argument("--folder", help="where runs are made, for as long as they are compared")
    return parser.parse_args()


def drawn(dice: random.Random) -> Draw:
    """One combination. Half of the options keep their default, so that not all are refused."""
    settings = {}
    for option, (_, *others) in OPTIONS.items():
        if dice.random() >= KEEPS_DEFAULT.get(option, 0.6):
            settings[option] = dice.choice(others)
    rule = dice.choice(list(RULES)) if dice.random() < 0.4 else "none"
    return Draw(dice.choice(list(MODULES)), rule, settings)


def try_one(draw: Draw, folder: Path, seed: float) -> tuple[str, str]:
    """(outcome, what is to be said of it). Outcomes: equal, refused, no text, differs, fails."""
    try:
        try:
            check(draw)
        except DipacoError as error:
            return "refused", str(error)
        with trained(draw, folder, random.Random(seed)) as run:
            wrong = differences(run)
    except EmptyShard as error:
        return "no text", str(error)
    except Exception:
        return "fails", traceback.format_exc()
    return ("differs", "; ".join(wrong)) if wrong else ("equal", "")


def check(draw: Draw) -> None:
    """Raises `DipacoError` where settings do not fit each other."""
    check_settings(config_of(draw), record_of(rules_of(draw)))


def config_of(draw: Draw) -> RunConfig:
    """The config of a draw; phases of three steps, so that a delay of two leaves one."""
    model = dataclasses.replace(CONFIG.model, tied_head=draw.modules == "tied_head")
    inner = dataclasses.replace(CONFIG.inner, steps=3)
    topology = Topology(levels=MODULES[draw.modules])
    config = dataclasses.replace(CONFIG, model=model, inner=inner, topology=topology)
    return override(config, " ".join(draw.settings.values()).split())


def rules_of(draw: Draw) -> Rules:
    """The rule that a draw has instead of a built-in one."""
    if (rule := RULES[draw.rule]) is None:
        return Rules()
    kind, module, function = rule
    return Rules(**{kind: getattr(importlib.import_module(module), function)})


@contextlib.contextmanager
def trained(draw: Draw, folder: Path, dice: random.Random) -> Generator[Run]:
    """A run of these settings whose modules have made all their steps, some paths late."""
    run, _ = create_or_open(folder, config_of(draw), rules=record_of(rules_of(draw)))
    try:
        run.programs = programs_of(run)
        train(run, lambda task: dice.random() < 0.3)
        yield run
    finally:
        run.ledger.close()


_PROGRAMS: dict[str, Programs] = {}


def programs_of(run: Run) -> Programs:
    """Compiled programs, the same for all runs whose paths take the same steps."""
    inner = dataclasses.replace(run.config.inner, hold_out=0.0, freeze_absent_tokens=False)
    key = repr((run.config.model, inner, run.rules.get("path_loss")))
    return _PROGRAMS.setdefault(key, run.programs)


def train(run: Run, is_slow: Callable[[Task], bool]) -> None:
    """Does tasks until every module has made all its steps, as several workers would: the paths
    that are slow are trained when nothing else is left.
    """
    queue, worker, held = run.ledger.queue, worker_of(run), []
    modules = set(run.config.topology.modules)
    while run.ledger.facts.modules_at(MODULAR, run.config.phases) != modules:
        run.ledger.quorums.end_grace(run.plan)
        claim = queue.claim("test")
        if claim is None:
            assert held, "modules are left to step, and no task is due"
            claim = held.pop(0)
        elif (claim.task.arm, claim.task.kind) == (MODULAR, "train") and is_slow(claim.task):
            held.append(claim)
            continue
        try:
            facts = execute(run, claim, NullCallbacks(), lambda: False)
        except Preempted as stopped:
            worker._release(claim, stopped.partial_snapshot)
        else:
            worker._finish(claim, facts)


if __name__ == "__main__":
    sys.exit(main())
