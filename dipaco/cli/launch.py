"""Do a run with many workers, on this machine or on a cluster.

  dipaco launch CONFIG --run runs/big --workers 4
      processes of this machine, as `train --workers`
  dipaco launch CONFIG --run runs/big --workers 8 --devices-per-worker 1
      each has its own device, or several share one and its memory if there are fewer devices
  dipaco launch CONFIG --run s3://BUCKET/big --database env:DIPACO_DATABASE \\
      --engine ray --address HOST:6379 --workers 64 --devices-per-worker 8 --executors 4 --monitor
      actors on a Ray cluster (extra `ray`), each in a placement group with its GPUs, TPUs or CPUs
  dipaco launch CONFIG --run ... --engine ray --workers 8 --hosts-per-worker 2
      each worker is one program over two machines
  dipaco scale --run s3://BUCKET/big --workers 32
      from anywhere, while it runs

The launcher restarts workers that died. Ctrl-C or SIGTERM ends them after they have saved their
work. All results are in the ledger and the store: a launcher, a machine or a whole cluster that
dies costs only time, and the same command continues. A second launch, on another cluster, adds
workers to the same run.
"""

import argparse
import functools
from typing import TYPE_CHECKING

from dipaco.cli.errors import OptionMissing
from dipaco.cli.options import (
    add_run_start,
    add_trackers,
    begun,
    check_between,
    check_memory_fraction,
    option_of,
)
from dipaco.cli.run_commands import stopped

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.launch.engine import Engine
    from dipaco.launch.supervisor import WorkerGroup
    from dipaco.runs.run import Run

HELP = "do a run with many workers, here or on a Ray cluster"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_start(parser)
    add_trackers(parser)
    add = parser.add_argument
    add("--engine", choices=("local", "ray"), default="local", help="default: local")
    add("--address", metavar="A", help="address of the Ray cluster (default: this machine's)")
    add("--workers", type=int, required=True, metavar="N", help="how many to keep alive")
    add("--devices-per-worker", type=int, metavar="K", help="devices of each host (default: all)")
    add("--hosts-per-worker", type=int, default=1, metavar="H", help="machines of one worker")
    add(
        "--cpus-per-worker",
        type=int,
        default=1,
        metavar="C",
        help="reserved by Ray for each host (default: 1)",
    )
    add(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="share of a GPU's memory for each worker that uses it (default: equal parts)",
    )
    add("--executors", type=int, default=0, metavar="N", help="processes that only step modules")
    add("--evaluators", type=int, default=0, metavar="N", help="processes that only evaluate")
    add("--monitor", action="store_true", help="also a process that reports silent workers")
    add("--name", help="name for `dipaco scale --launcher` (default: one is made up)")


def run(options: argparse.Namespace) -> int:
    from dipaco.overrides import load_config

    config = load_config(options.config, options.overrides)
    _check_counts(options)
    from dipaco.launch.devices import use_cpu_only

    use_cpu_only()

    from dipaco.control.names import check_name
    from dipaco.launch.launcher_name import launcher_name
    from dipaco.launch.supervisor import supervise
    from dipaco.library.console import print_results, title_of
    from dipaco.observe.trackers import check_trackers

    if options.name is not None:
        check_name(options.name)
    check_trackers(options.trackers)
    with begun(
        options,
        config,
        check_new=functools.partial(_check_mesh, options),
        check_open=functools.partial(_check_name, options),
    ) as (opened, is_new):
        if opened.ledger.queue.is_finished():
            print_results(opened)
            return 0
        name = launcher_name(options.name, opened.ledger, roles="-[a-z]+")
        engine = _engine(opened, options)
        if is_new:
            print(title_of(opened), flush=True)
        print(f"launcher {name}: {options.workers} workers on {options.engine}", flush=True)
        groups = _worker_groups(opened, options, name)
        if not supervise(opened, engine, groups, name, trackers=options.trackers):
            return stopped(opened.ledger)
        print_results(opened)
    return 0


def _check_counts(options: argparse.Namespace) -> None:
    least = {
        "workers": 0,  # `dipaco scale` may raise it later
        "devices_per_worker": 1,
        "hosts_per_worker": 1,
        "cpus_per_worker": 1,
        "executors": 0,
        "evaluators": 0,
    }
    for option, at_least in least.items():
        value = getattr(options, option)
        check_between(option_of(option), value, at_least)
    several, each = options.hosts_per_worker > 1, options.devices_per_worker
    if several and options.engine == "local" and each is None:
        expected = "a number: all hosts of a worker are on this machine, and must not share devices"
        raise OptionMissing(option="--devices-per-worker", expected=expected)
    check_memory_fraction(options.memory_fraction)


def _check_mesh(options: argparse.Namespace, config: "RunConfig") -> None:
    """Raises `MeshUnfit` if the devices that each worker is given cannot train a new run. Their
    number is known only on the worker's machine if none are given, on a TPU, whose chip may be two
    devices, and on a cluster, which may have TPUs.
    """
    from dipaco.errors import SettingsDisagree
    from dipaco.launch.devices import visible_devices
    from dipaco.launch.errors import MeshUnfit
    from dipaco.model.errors import BadMesh
    from dipaco.runs.meshes import check_number

    if options.devices_per_worker is None or options.workers == 0:
        return
    if options.engine != "local" or visible_devices().kind == "tpu":
        return
    devices = options.devices_per_worker * options.hosts_per_worker
    try:
        check_number(config, devices, options.hosts_per_worker)
    except (BadMesh, SettingsDisagree) as error:
        raise MeshUnfit(devices=devices, problem=error) from error


def _check_name(options: argparse.Namespace, opened: "Run") -> None:
    """Raises `LauncherNameTaken` if the name that is given is another launcher's."""
    from dipaco.launch.launcher_name import check_free

    if options.name is not None and not opened.ledger.queue.is_finished():
        check_free(options.name, opened.ledger)


def _worker_groups(opened: "Run", options: argparse.Namespace, name: str) -> list["WorkerGroup"]:
    from dipaco.launch.process_spec import ProcessSpec, variables_for
    from dipaco.launch.supervisor import WorkerGroup
    from dipaco.runs.opening import database_option

    # Not a relative folder: on another machine it would be another folder.
    where = opened.address.absolute
    variables = variables_for(where, database_option(opened.address))
    counts = {
        "worker": options.workers,
        "executor": options.executors,
        "evaluator": options.evaluators,
        "monitor": int(options.monitor),
    }
    return [
        WorkerGroup(
            ProcessSpec(
                verb, where, options.hosts_per_worker if verb == "worker" else 1, variables
            ),
            f"{name}-{verb}",
            count,
        )
        for verb, count in counts.items()
    ]


def _engine(opened: "Run", options: argparse.Namespace) -> "Engine":
    if options.engine == "ray":
        from dipaco.launch.ray import RayEngine, WorkerResources

        resources = WorkerResources(
            options.devices_per_worker, options.cpus_per_worker, options.memory_fraction
        )
        place = None if opened.database_location.is_server else str(opened.address)
        return RayEngine(options.address, resources, opened.address.absolute, on_one_machine=place)
    from dipaco.launch.devices import devices_of, visible_devices
    from dipaco.launch.local import LocalEngine

    devices = devices_of(
        visible_devices(),
        options.devices_per_worker,
        options.workers * options.hosts_per_worker + options.evaluators,
        options.memory_fraction,
    )
    return LocalEngine(opened.layout.log, devices)
