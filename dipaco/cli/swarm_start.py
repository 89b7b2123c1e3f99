"""`dipaco swarm start`: a worker that has volunteers take the steps of one path of its run."""

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import (
    DAY_SECONDS,
    add_database,
    add_run,
    add_set,
    check_between,
    check_lease,
    name_of,
    path_of,
)
from dipaco.cli.run_commands import stopped
from dipaco.cli.swarm_credentials import backbone_credential
from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.errors import BadSetting, SettingsDisagree

if TYPE_CHECKING:
    from dipaco.runs.run import Run
    from dipaco.swarm.training.compute import GroupSettings

say = functools.partial(print, flush=True)

LISTEN = "0.0.0.0:0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a file with run()")
    add_run(parser)
    add_database(parser)
    add_set(parser)
    parser.add_argument("--path", type=int, metavar="I", help="needed if the run has several")
    parser.add_argument(
        "--listen",
        default=LISTEN,
        metavar="HOST:PORT",
        help="where peers reach this machine (default: any free port)",
    )
    parser.add_argument(
        "--announce",
        metavar="HOST",
        help="name or address that peers are told (default: this machine's own)",
    )
    parser.add_argument(
        "--token",
        type=Path,
        metavar="FILE",
        help="made by `token --backbone`, on a machine without the run's signing key",
    )
    parser.add_argument("--name", help="name of this worker (default: one is made up)")
    parser.add_argument(
        "--block-rows",
        type=int,
        metavar="N",
        help="rows in a block (default: a 32nd of a batch, an eighth with --local-steps)",
    )
    parser.add_argument(
        "--codec",
        choices=("none", "int8"),
        default="none",
        help="codec of gradients on the wire (default: none, float32)",
    )
    parser.add_argument(
        "--local-steps",
        type=int,
        default=1,
        metavar="H",
        help="steps that the holder of a block takes by itself before states are averaged, on thin "
        "lines (default: 1, the steps are those of one machine)",
    )
    parser.add_argument(
        "--save-seconds", type=float, default=60.0, metavar="S", help="time between saves (60)"
    )
    parser.add_argument(
        "--lease-seconds",
        type=float,
        default=LEASE_SECONDS,
        metavar="S",
        help=f"silence after which another backbone leads (default: {LEASE_SECONDS:.0f})",
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()

    from dipaco.overrides import load_config
    from dipaco.swarm.network.addresses import check_to_listen

    name = name_of(options.name)
    check_lease(options.lease_seconds)
    check_between("--save-seconds", options.save_seconds, 1, DAY_SECONDS)
    config = load_config(options.config, options.overrides)
    path = path_of(options.path, config.num_paths)
    check_to_listen(options.listen, options.announce)
    rows, batch = options.block_rows, config.inner.batch_size
    if rows is not None and not 1 <= rows <= batch:
        expected = f"1 to {batch} (`inner.batch_size`)"
        raise BadSetting(name="--block-rows", value=rows, expected=expected)
    if options.local_steps != 1:
        _check_local_steps(options, config.inner.steps)
    if config.inner.freeze_absent_tokens:
        raise SettingsDisagree(
            problem="`inner.freeze_absent_tokens` is on, and volunteers inside a path are not told "
            "which tokens its shard has. Train such a run with `dipaco worker`"
        )
    if config.outer.delay:
        raise SettingsDisagree(
            problem=f"`outer.delay` is {config.outer.delay}, and volunteers inside a path begin a "
            "phase with its modules; expected 0. Train such a run with `dipaco worker`"
        )

    from dipaco.caches import cache_folder
    from dipaco.config import MODULAR
    from dipaco.launch.equal_bits import ask_for_equal_bits
    from dipaco.library.console import ConsoleReporter, print_results
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.swarm.network.messages import RUN_FAILED, RUN_OVER
    from dipaco.swarm.roles.backbone import Backbone, BackbonePlace
    from dipaco.workers.errors import TaskFailed
    from dipaco.workers.process import begun_run, work
    from dipaco.workers.registration import wait_until_name_is_free
    from dipaco.workers.runners import Volunteers

    ask_for_equal_bits()
    use_compilation_cache(cache_folder() / "compiled")
    with begun_run(options.run, config, options.database) as (opened, is_new):
        wait_until_name_is_free(opened.ledger.members, name, say)
        backbone = Backbone(
            opened.open_ledger,
            BackbonePlace(MODULAR, path, name),
            _settings(opened, options),
            backbone_credential(opened, options.token, path),
            listen=options.listen,
            announce=options.announce,
            say=say,
            save_seconds=options.save_seconds,
            num_steps=opened.plan.arm(MODULAR).total_steps,
        )
        backbone.start()
        end = ""
        try:
            say(f"dipaco swarm join {backbone.address} --token FILE")
            with ConsoleReporter(opened) as console:
                console.greet(is_new=is_new)
                is_finished = work(
                    opened,
                    name,
                    console,
                    lease_seconds=options.lease_seconds,
                    runner=Volunteers(opened, backbone.run_phase),
                    on_ctrl_c=True,
                )
            if not is_finished:
                return stopped(opened.ledger)
            end = RUN_OVER
            print_results(opened)
        except TaskFailed:
            end = RUN_FAILED
            raise
        finally:
            backbone.close(end)
    return 0


def _settings(opened: "Run", options: argparse.Namespace) -> "GroupSettings":
    from dipaco.config import MODULAR
    from dipaco.swarm.training.compute import GroupSettings

    if "path_loss" in opened.rules:
        problem = f"the path loss is `{opened.rules['path_loss'].name}`, and peers have only ours"
        raise SettingsDisagree(problem=problem)
    config = opened.config
    return GroupSettings(
        model=config.model,
        inner=config.inner,
        length=config.data.length,
        block_rows=options.block_rows or _default_block_rows(options, config.inner.batch_size),
        codec=options.codec,
        local_steps=options.local_steps,
        schedule_steps=opened.plan.arm(MODULAR).total_steps,
    )


def _default_block_rows(options: argparse.Namespace, batch_size: int) -> int:
    """The batch of local steps is a block, and small batches make poor steps."""
    return max(1, batch_size // (32 if options.local_steps == 1 else 8))


def _check_local_steps(options: argparse.Namespace, steps: int) -> None:
    """Raises `BadSetting`, `SettingsDisagree`."""
    if options.local_steps < 1 or steps % options.local_steps:
        expected = f"a divisor of the {steps} steps of a phase (`inner.steps`)"
        raise BadSetting(name="--local-steps", value=options.local_steps, expected=expected)
    if options.codec != "none":
        problem = "the optimiser state that `--local-steps` averages does not bear `--codec int8`"
        raise SettingsDisagree(problem=problem)
