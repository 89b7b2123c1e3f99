"""Do a run: fetch and prepare text, train the base model, route, train the paths and the baselines,
evaluate, report.

  dipaco train configs/quickstart.py --run runs/quickstart
  dipaco train configs/quickstart.py --run runs/seed1 --set seed=1
  dipaco train CONFIG --run DIR2 --from DIR@12
      start from the modules of another run after phase 12; nothing is pre-trained
  dipaco train CONFIG --run DIR3 --init-from CHECKPOINT --set base.steps=0
      all modules start from a Hugging Face checkpoint; without `base.steps=0` it is the base model
      that starts there, and is trained on first
  dipaco train CONFIG --run DIR --workers 4
      on four processes of this machine, which may be killed one by one
  dipaco train CONFIG --run DIR --database postgresql://HOST/NAME
      its facts on a server, so that workers on other machines can take part
  dipaco train CONFIG --run s3://BUCKET/NAME --database postgresql://HOST/NAME
      its bytes in a bucket as well, for machines that share no folder: on each of them,
      dipaco worker --run s3://BUCKET/NAME

Interrupted at any point (Ctrl-C, kill -9, power), the same command goes on from there, to the same
numbers. A run that is finished prints its table again.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.config import add_set
from dipaco.cli.roles import add_database
from dipaco.cli.runs import add_run
from dipaco.errors import BadWorkers

if TYPE_CHECKING:
    from dipaco.runs.run import Run

HELP = "do a run, or go on with one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", type=Path, metavar="CONFIG", help="a file with a function `run()`"
    )
    add_run(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--init-from",
        type=Path,
        metavar="CHECKPOINT",
        help="a Hugging Face checkpoint to start from",
    )
    start.add_argument(
        "--from",
        dest="start_from",
        metavar="DIR@PHASE",
        help="another run to start from: its modules, base model, router and tokenizer",
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write TensorBoard event files"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that share the work (default: 1)",
    )
    add_database(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()  # before any library starts a thread

    from dipaco.overrides import load_config

    # Before JAX is loaded: a typo answers at once.
    config = load_config(options.config, options.overrides)

    from dipaco.caches import cache_folder
    from dipaco.cli.narrator import print_results
    from dipaco.runs.programs import keep_compiled
    from dipaco.runs.run import create_or_open, has_begun, taking_part
    from dipaco.workers.loop import recover
    from dipaco.workers.origin import check_origin, from_checkpoint, from_run

    if options.workers < 1:
        raise BadWorkers(given=options.workers)
    keep_compiled(cache_folder() / "compiled")
    with taking_part(options.run) as part:
        given = None
        # A run that has begun holds what it started from; the origin may be gone.
        if not has_begun(options.run, config):
            if options.init_from is not None:
                given = from_checkpoint(config, options.run, options.init_from)
            elif options.start_from is not None:
                given = from_run(config, options.run, options.start_from)
        opened, is_new = create_or_open(options.run, config, given, options.database)
        try:
            check_origin(opened, options.init_from, options.start_from)
            if part.is_alone:
                recover(opened)
            part.let_others_in()
            do = _alone if options.workers == 1 else _with_workers
            if not do(opened, options, is_new):
                print(f"Stopped in order. {_how_to_go_on(opened)}")
                return 0
            print_results(opened)
        finally:
            opened.ledger.close()
    return 0


def _how_to_go_on(opened: "Run") -> str:
    order = opened.ledger.meta("order") or "run"
    if order == "run":
        return "The same command goes on from here."
    return f"The run was told to {order}: `dipaco resume` first, then the same command."


def _alone(opened: "Run", options: argparse.Namespace, is_new: bool) -> bool:
    """In this process; False where it was told to stop."""
    from dipaco.cli.narrator import Narrator
    from dipaco.cli.working import own_name, work

    with Narrator(opened, tensorboard=options.tensorboard) as narrator:
        narrator.greet(is_new=is_new)
        return work(opened, own_name(), narrator)


def _with_workers(opened: "Run", options: argparse.Namespace, is_new: bool) -> bool:
    """In processes that this one starts, and starts again when they die."""
    import os
    import signal

    from dipaco.cli.narrator import title_of
    from dipaco.cli.onlooker import Onlooker
    from dipaco.launch.local import LocalEngine
    from dipaco.launch.roles import Role
    from dipaco.launch.supervisor import Supervisor

    if is_new:
        print(title_of(opened.config), flush=True)
    engine = LocalEngine(opened.layout.log)
    role = Role("worker", str(options.run), options.database)
    names = [f"local-{os.getpid()}-{number}" for number in range(options.workers)]
    with Onlooker(opened, tensorboard=options.tensorboard) as onlooker:
        supervisor = Supervisor(
            engine, role, names, opened.ledger, onlooker.tell, _last_words(opened)
        )
        before = signal.signal(signal.SIGTERM, lambda *_: supervisor.end())
        try:
            return supervisor.keep_until_finished(onlooker.look)
        finally:
            supervisor.stop()
            signal.signal(signal.SIGTERM, before)


def _last_words(opened: "Run") -> Callable[[str], str]:
    def last_words(worker: str) -> str:
        file = opened.layout.log(worker)
        lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
        return lines[-1] if lines else f"none; see {file}"

    return last_words
