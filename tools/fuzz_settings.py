"""Checks that runs of any settings equal Algorithm 1: settings are drawn together, and each run is
trained through tasks, ledger and store and then once more by `replay.py`.

    python tools/fuzz_settings.py --runs 200 --seed 0
    python tools/fuzz_settings.py --minutes 60 --seed 7 --database postgresql

A draw takes one value of every option in `OPTIONS`, some modules, perhaps an own rule, and hosts of
one kind or two, with a folder or a bucket. Settings that do not fit each other must be refused with
a sentence, before anything is trained; such a draw is counted as refused. The others train the toy
text in the smallest model, by workers that die, hang, are suspended, lose disks and objects, delete
and go back (`support/played_hosts.py`). Every module at every phase must have the bits of Algorithm
1. A run that ends because its router left a path without documents is counted as `no text`.

`--run N` does one draw alone. The last line is one JSON object; exit code 1: a draw was not equal,
or neither refused nor trained.
"""

import argparse
import contextlib
import dataclasses
import importlib
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import NamedTuple

from support.fuzzer import Fuzzer
from support.memory_bucket import Machine
from support.played_hosts import Fleet, Play, Wrong, played
from support.scratch import scratch
from support.smallest_run import CONFIG, SHARINGS

from dipaco.config import MODULAR, RunConfig
from dipaco.control.planning.tasks import Task
from dipaco.data.errors import EmptyShard
from dipaco.errors import DipacoError
from dipaco.overrides import override
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs, use_compilation_cache
from dipaco.runs.rules import Rules, check_settings, record_of
from dipaco.runs.run import Run
from dipaco.store.layout import CONTRIBUTIONS, MODULES, OUTER_STATES, SNAPSHOTS, object_of
from dipaco.topology import Level, Topology
from dipaco.workers.replay import differences

HAPPENED: Counter[str] = Counter()  # in all runs
LOST = tuple(f"{folder}/" for folder in (CONTRIBUTIONS, MODULES, OUTER_STATES, SNAPSHOTS))
EXAMPLES = Path(__file__).parents[1] / "configs" / "examples"
TIED = (SHARINGS["2x2"][0], Level(name="late", parts=("block_00", "final_norm"), experts=2))
SHAPES = {**SHARINGS, "tied_head": TIED, "one_path": SHARINGS["diloco"][:1]}
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
    "kept": ("", "retention.snapshots=1 retention.contributions=1"),
}
# The hosts of the smallest form: some paths are late.
ONE_HOST = Fleet(("a",), has_bucket=False, troubles=frozenset({"late", "saved"}))
# Share of the draws where an option keeps its default. This one is refused beside most others.
KEEPS_DEFAULT = {"synchronous": 0.9}


class Draw(NamedTuple):
    """Settings that are tried together."""

    modules: str  # modules of `SHAPES`
    rule: str  # of `RULES`
    settings: Mapping[str, str]  # option -> one of its values, where it is not the default

    def __str__(self) -> str:
        words = (f"modules={self.modules}", f"own_rule={self.rule}", *self.settings.values())
        return " ".join(words).replace("own_rule=none", "").replace("  ", " ").strip()


def main() -> int:
    fuzzer = Fuzzer(__doc__, ("equal", "refused", "no text"), ("equal", "no text"))
    fuzzer.parser.add_argument("--folder", help="where runs are made, until they are compared")
    sys.path.insert(0, str(EXAMPLES))
    use_compilation_cache()
    return fuzzer.main(one_run, HAPPENED)


def one_run(
    dice: random.Random, options: argparse.Namespace, url: str | None
) -> tuple[str, str, str]:
    """(outcome, settings and hosts, what is to be said). Outcomes: equal, refused, no text,
    differs.
    """
    draw, fleet = drawn(dice), Fleet.drawn(dice)
    said = f"{draw}; {fleet}"
    try:
        check(draw)
    except DipacoError as error:
        return "refused", said, str(error)
    try:
        with (
            scratch(options.folder, "fuzz-") as folder,
            trained(draw, folder / "run", dice, fleet, url) as run,
        ):
            wrong = differences(run)
    except EmptyShard as error:
        return "no text", said, str(error)
    except Exception as error:
        raise Wrong(said) from error
    return ("differs", said, "; ".join(wrong)) if wrong else ("equal", said, "")


def drawn(dice: random.Random) -> Draw:
    """One combination. Half of the options keep their default, so that not all are refused."""
    settings = {}
    for option, (_, *others) in OPTIONS.items():
        if dice.random() >= KEEPS_DEFAULT.get(option, 0.6):
            settings[option] = dice.choice(others)
    rule = dice.choice(list(RULES)) if dice.random() < 0.4 else "none"
    return Draw(dice.choice(list(SHAPES)), rule, settings)


def check(draw: Draw) -> None:
    """Raises `DipacoError` where settings do not fit each other."""
    check_settings(config_of(draw), record_of(rules_of(draw)))


def config_of(draw: Draw) -> RunConfig:
    """The config of a draw; phases of three steps, so that a delay of two leaves one."""
    model = dataclasses.replace(CONFIG.model, tied_head=draw.modules == "tied_head")
    inner = dataclasses.replace(CONFIG.inner, steps=3)
    topology = Topology(levels=SHAPES[draw.modules])
    config = dataclasses.replace(CONFIG, model=model, inner=inner, topology=topology)
    return override(config, " ".join(draw.settings.values()).split())


def rules_of(draw: Draw) -> Rules:
    """The rule that a draw has instead of a built-in one."""
    if (rule := RULES[draw.rule]) is None:
        return Rules()
    kind, module, function = rule
    return Rules(**{kind: getattr(importlib.import_module(module), function)})


@contextlib.contextmanager
def trained(
    draw: Draw,
    folder: Path,
    dice: random.Random,
    fleet: Fleet = ONE_HOST,
    url: str | None = None,
) -> Generator[Run]:
    """A run of these settings on such hosts, whose modules have made all their steps."""
    config, rules = config_of(draw), record_of(rules_of(draw))
    run, _ = create_or_open(folder, config, rules=rules, database=url)
    try:
        run.programs = programs_of(run)
        train(run, folder.parent, fleet, dice)
        yield run
    finally:
        run.ledger.close()


_PROGRAMS: dict[str, Programs] = {}


def programs_of(run: Run) -> Programs:
    """Compiled programs, the same for all runs whose paths take the same steps."""
    inner = dataclasses.replace(run.config.inner, hold_out=0.0, freeze_absent_tokens=False)
    key = repr((run.config.model, inner, run.rules.get("path_loss")))
    return _PROGRAMS.setdefault(key, run.programs)


def train(run: Run, folder: Path, fleet: Fleet, dice: random.Random) -> None:
    """Does tasks until every module has made all its steps."""
    bucket: dict[str, bytes] = {}
    disks: list[Path] = []
    lost: dict[str, bytes] = {}
    plays: list[Play] = []

    def in_between(delete: Callable[[str], None]) -> Callable[[str], None]:
        def delete_and_play(name: str) -> None:
            delete(name)
            plays[0].in_between()

        return delete_and_play

    def new_run(name: str) -> tuple[Run, Callable[[], None]]:
        if fleet.has_bucket:
            disks.append(folder / name)
            new = Machine(run, folder / name, bucket).run
        else:
            new = Run(run.address, run.requested_config, run.database_location, run.ledger)
            new.programs = run.programs
        new.objects.delete = in_between(new.objects.delete)  # ty: ignore
        return new, lambda: shutil.rmtree(folder / name)

    def lose_object(task: Task) -> bool:
        """One that the run has made, and not a stage."""
        names = sorted(run.objects.names(*LOST) | set(bucket))
        names = [name for name in names if name.startswith(LOST)]
        if names:
            name = object_of(dice.choice(names))
            for disk in disks:
                remove(disk / "run" / name)
            if fleet.has_bucket:
                gone = [each for each in bucket if object_of(each) == name]
                lost.update({each: bucket.pop(each) for each in gone})
            elif (place := run.objects.root / name).exists():
                (folder / "lost" / name).parent.mkdir(parents=True, exist_ok=True)
                remove(folder / "lost" / name)
                place.rename(folder / "lost" / name)
        return bool(names)

    modules = set(run.config.topology.modules)
    with played():
        plays.append(Play(fleet, new_run, dice, lose_object=lose_object, workers=4))
        plays[0].until(lambda: run.ledger.facts.modules_at(MODULAR, run.config.phases) == modules)
    HAPPENED.update(plays[0].counts)
    # A lost module that no task needed again was not made again. It is compared all the same.
    if fleet.has_bucket:
        bucket.update({name: content for name, content in lost.items() if name not in bucket})
        run.objects = Machine(run, folder / "compared", bucket).run.objects
    for file in (folder / "lost").glob("objects/*/*"):
        place = run.objects.root / file.relative_to(folder / "lost")
        if not place.exists():
            file.rename(place)


def remove(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
