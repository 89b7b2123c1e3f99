"""Do a run: fetch and prepare text, train the base model, route, train the paths and the baselines,
evaluate, report.

  dipaco train configs/quickstart.py --run runs/quickstart
  dipaco train configs/quickstart.py --run runs/seed1 --set seed=1
  dipaco train CONFIG --run DIR2 --from DIR@12
      start from the modules of another run after phase 12; nothing is pre-trained
  dipaco train CONFIG --run DIR3 --init-from CHECKPOINT --set base.steps=0
      all modules start from a Hugging Face checkpoint; without `base.steps=0` it is the base model
      that starts there, and is trained on first

Interrupted at any point (Ctrl-C, kill -9, power), the same command goes on from there, to the same
numbers. A run that is finished prints its table again.
"""

import argparse
from pathlib import Path

from dipaco.cli.config import add_set

HELP = "do a run, or go on with one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", type=Path, metavar="CONFIG", help="a file with a function `run()`"
    )
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run's folder")
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
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()  # before any library starts a thread

    from dipaco.overrides import load_config

    # Before JAX is loaded: a typo answers at once.
    config = load_config(options.config, options.overrides)

    from dipaco.caches import cache_folder
    from dipaco.cli.narrator import Narrator, print_results
    from dipaco.runs.programs import keep_compiled, machine
    from dipaco.runs.run import create_or_open, has_begun, working_alone
    from dipaco.workers.loop import recover, run_until_idle
    from dipaco.workers.origin import check_origin, from_checkpoint, from_run
    from dipaco.workers.stages import restore_corpus

    keep_compiled(cache_folder() / "compiled")
    with working_alone(options.run):
        given = None
        # A run that has begun holds what it started from; the origin may be gone.
        if not has_begun(options.run, config):
            if options.init_from is not None:
                given = from_checkpoint(config, options.run, options.init_from)
            elif options.start_from is not None:
                given = from_run(config, options.run, options.start_from)
        opened, is_new = create_or_open(options.run, config, given)
        try:
            check_origin(opened, options.init_from, options.start_from)
            machine_then = opened.ledger.remember("machine", machine())
            recover(opened)
            with Narrator(opened, is_new=is_new, tensorboard=options.tensorboard) as narrator:
                narrator.compare_machines(machine_then, machine())
                restore_corpus(opened, narrator.prepared)
                run_until_idle(opened, worker="local", watcher=narrator)
            print_results(opened)
        finally:
            opened.ledger.close()
    return 0
