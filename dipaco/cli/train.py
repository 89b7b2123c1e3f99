"""Do a run: fetch and prepare text, train the base model, route documents, train the paths and the
baselines, evaluate, report.

  dipaco train configs/quickstart.py --run runs/quickstart
  dipaco train configs/quickstart.py --run runs/seed1 --set seed=1
  dipaco train CONFIG --run DIR2 --from DIR@12
      start from the modules of another run after 12 phases, without pre-training
  dipaco train CONFIG --run DIR2 --from DIR@base
      start from its text, tokenizer, base model and router, under any topology
  dipaco train CONFIG --run DIR3 --init-from CHECKPOINT --set base.steps=0
      all modules start from a Hugging Face checkpoint (without `base.steps=0` the base model does,
      and is trained further first)
  dipaco train CONFIG --run DIR --workers 4
      four processes on this machine, each of which may be killed
  dipaco train CONFIG --run DIR --dashboard
      and its page at http://localhost:8080/ while it goes on (`dipaco dashboard`)
  dipaco train CONFIG --run DIR --database postgresql://HOST/NAME
      facts on a server, so that workers on other machines can take part
  dipaco train CONFIG --run s3://BUCKET/NAME --database postgresql://HOST/NAME
      bytes in a bucket as well, for machines that share no folder. On each machine:
      dipaco worker --run s3://BUCKET/NAME

Interrupted at any point (Ctrl-C, kill -9, power loss), the same command continues from there, to
the same numbers. For a finished run it prints the table again.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dipaco.cli.dashboard import add_dashboard, beside, check_dashboard
from dipaco.cli.options import (
    add_metrics,
    add_run_start,
    add_trackers,
    begun,
    check_between,
    check_metrics,
    name_of,
    with_metrics,
)
from dipaco.cli.run_commands import stopped
from dipaco.errors import BadSetting

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.runs.run import Run

HELP = "do a run, or continue one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_start(parser)
    add_trackers(parser)
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that share the work (default: 1)",
    )
    add_dashboard(parser)
    add_metrics(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()  # before any library starts a thread

    from dipaco.launch.equal_bits import ask_for_equal_bits

    ask_for_equal_bits()

    from dipaco.overrides import load_config

    # Before JAX is loaded: a typing error answers at once.
    config = load_config(options.config, options.overrides)

    from dipaco.launch.devices import use_cpu_only
    from dipaco.library.console import print_results
    from dipaco.observe.trackers import check_trackers
    from dipaco.runs.meshes import check_devices
    from dipaco.runs.programs import use_compilation_cache

    if options.workers == 0:
        hint = " `dipaco begin` begins a run and does none of it."
        raise BadSetting(name="--workers", value=0, expected="1 or more", hint=hint)
    check_between("--workers", options.workers, 1)
    check_dashboard(options)
    check_metrics(options)
    check_trackers(options.trackers)
    is_alone = options.workers == 1
    if is_alone:
        use_compilation_cache()
    else:
        use_cpu_only()
    with begun(
        options,
        config,
        reads_text=True,
        check_machine=check_devices if is_alone else partial(_check_devices, options.workers),
    ) as (opened, is_new):
        do = _alone if is_alone else _with_workers
        with beside(str(options.run), options.dashboard):
            is_finished = do(opened, options, is_new)
        if not is_finished:
            return stopped(opened.ledger)
        print_results(opened)
    return 0


def _alone(opened: "Run", options: argparse.Namespace, is_new: bool) -> bool:
    """Works in this process. False if it was asked to stop."""
    from dipaco.library.console import ConsoleReporter
    from dipaco.workers.process import work

    with ConsoleReporter(opened, trackers=options.trackers) as console:
        console.greet(is_new=is_new)
        with with_metrics(opened, options, console) as callbacks:
            return work(opened, name_of(None), callbacks)


def _with_workers(opened: "Run", options: argparse.Namespace, is_new: bool) -> bool:
    """Works in processes that this one starts and restarts. False if it was asked to stop."""
    from dipaco.launch.launcher_name import launcher_name
    from dipaco.launch.local import LocalEngine
    from dipaco.launch.process_spec import ProcessSpec
    from dipaco.launch.supervisor import WorkerGroup, supervise
    from dipaco.library.console import title_of

    if is_new:
        print(title_of(opened), flush=True)
    launcher = launcher_name(None, opened.ledger)
    group = WorkerGroup(ProcessSpec("worker", str(options.run)), launcher, options.workers)
    engine = LocalEngine(opened.layout.log, _devices_of(options.workers, opened.config))
    with with_metrics(opened, options, None):
        return supervise(opened, engine, [group], launcher, trackers=options.trackers)


def _check_devices(workers: int, config: "RunConfig") -> None:
    """Raises `TooFewDevices`, and as `check_devices` where workers use the CPU, as this process
    does: they are told to, or can do no other. Else they find their devices themselves.
    """
    from dipaco.launch.devices import is_for_cpu_only, is_told_to_use_cpu
    from dipaco.runs.meshes import check_devices

    if is_told_to_use_cpu() or is_for_cpu_only():
        check_devices(config)
    _devices_of(workers, config)


def _devices_of(workers: int, config: "RunConfig") -> Callable[[int], dict[str, str]]:
    """`devices_of` for workers that train this config. Raises `TooFewDevices`."""
    from dipaco.launch.devices import devices_of, visible_devices

    visible = visible_devices()
    each = None if visible.kind == "cpu" else config.mesh.num_devices
    return devices_of(visible, each, workers, None)
