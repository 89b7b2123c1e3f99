"""Predict the needs of a run before anything starts: a worker's memory, bytes of every machine and
of the bucket, operations, hours, and the gain of other codecs or longer phases.

  dipaco plan configs/quickstart.py
  dipaco plan configs/quickstart.py --workers 4 --mbit 20 --set outer.codec=int8
  dipaco plan configs/paper_16x16.py --step-seconds 1.4       the step of your accelerator
  dipaco plan configs/paper_16x16.py --device v5e:2x4         by the compiler for TPUs
  dipaco plan configs/paper_16x16.py --serve 16               the paths of 16 cells that serve it

A few inner steps are taken on this machine to time one, unless `--step-seconds` gives the time or a
step is too large to be tried. Bytes are for a run in a bucket, with each path on one machine and
modules stepped on any machine. Hours follow from bytes by the formula that is printed. Lock-step is
as many machines that average gradients at every step.

With `--device` the programs of a worker are compiled for it from shapes alone: memory, operations,
bytes moved, and the share of the peak that these allow, on each device, and the largest batch that
fits. `here` is the device of this machine. GPUs are planned by arithmetic.

With `--serve` only a file for `dipaco serve --upstream` is printed: cells whose paths share their
modules. Put the addresses of the cells in it.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import (
    CONFIG_HELP,
    DAY_SECONDS,
    add_json,
    add_set,
    check_between,
)

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.runs.forecast.forecast import Forecast, OtherPhase

HELP = "what a run will need: memory, bytes, hours"
LEAST_MEGABITS, MOST_MEGABITS = 1e-3, 1e6
LEAST_STEP_SECONDS = 1e-6
WIDTH = 80  # columns of a terminal
HOUR_SECONDS, MANY_HOURS = 3600.0, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG_HELP)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="machines (default: one for each path)"
    )
    parser.add_argument(
        "--mbit",
        type=float,
        metavar="M",
        help="megabits a second of every machine's link, up and down together (default: the first "
        "of report.link_megabits)",
    )
    parser.add_argument(
        "--store-mbit",
        type=float,
        metavar="M",
        help="megabits a second of the bucket's and database's link, which all machines share "
        "(default: never the bottleneck)",
    )
    parser.add_argument(
        "--step-seconds", type=float, metavar="S", help="seconds of an inner step of a path"
    )
    parser.add_argument(
        "--device", metavar="D", help="devices to compile for: v5e:2x4, v6e:2x2, h100, here, ..."
    )
    parser.add_argument(
        "--no-outer-steps",
        action="store_true",
        help="an executor beside the bucket steps the modules, and these machines do not",
    )
    parser.add_argument(
        "--serve", type=int, metavar="N", help="divide the paths among N cells, for a router"
    )
    add_json(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.overrides import load_config

    # Before JAX is loaded: a typing error answers at once.
    config = load_config(options.config, options.overrides)
    check_between("--workers", options.workers, 1)
    check_between("--mbit", options.mbit, LEAST_MEGABITS, MOST_MEGABITS)
    check_between("--store-mbit", options.store_mbit, LEAST_MEGABITS, MOST_MEGABITS)
    check_between("--step-seconds", options.step_seconds, LEAST_STEP_SECONDS, DAY_SECONDS)

    if options.serve is not None:
        check_between("--serve", options.serve, 1, config.topology.num_paths)
        print("\n".join(_cell_lines(config, options.serve, is_json=options.json)))
        return 0

    from dipaco.cli.plan_device import HERE, estimated_seconds, print_needs
    from dipaco.runs.forecast import devices
    from dipaco.runs.forecast.forecast import forecast

    device = None
    if options.device not in (None, HERE):
        device = devices.named(options.device)
        os.environ["JAX_PLATFORMS"] = "cpu"  # Nothing runs here.
    if device is None or options.step_seconds is not None:
        step, source = _step_seconds(config, options.step_seconds)
    else:
        step, source = estimated_seconds(config, device)
    found = forecast(
        config,
        workers=options.workers,
        megabits=options.mbit,
        store_megabits=options.store_mbit,
        step_seconds=step,
        steps_elsewhere=options.no_outer_steps,
    )
    said = {**dataclasses.asdict(found), "step_seconds_are": source}
    if not options.json:
        print("\n".join(_lines(found, source)), flush=True)
    if options.device is not None:
        with contextlib.redirect_stdout(io.StringIO() if options.json else sys.stdout):
            said |= print_needs(config, options.device, device)
    if options.json:
        print(json.dumps(said))
    return 0


def _cell_lines(config: "RunConfig", number: int, *, is_json: bool) -> Iterator[str]:
    """A file of upstreams: for each cell its paths, and a comment on its modules."""
    from dipaco.model.config import part_parameters
    from dipaco.plural import counted
    from dipaco.topology.cells import cells, listed

    topology, sizes = config.topology, part_parameters(config.model)
    divided, of_module = cells(topology, number, sizes), topology.module_sizes(sizes)
    if is_json:
        yield json.dumps(
            {listed(paths): {"url": f"http://cell-{n}:8000"} for n, paths in enumerate(divided)}
        )
        return
    yield f"# {config.name}: {counted(topology.num_paths, 'path')} in {counted(number, 'cell')}."
    for n, paths in enumerate(divided):
        held = {module for path in paths for module in topology.modules_of(path)}
        parameters = sum(of_module[module] for module in held)
        yield (
            f'"{listed(paths)}": {{url: "http://cell-{n}:8000"}}  # {counted(len(paths), "path")}, '
            f"{len(held)} of {counted(len(topology.modules), 'module')}, {parameters:,} parameters"
        )


def _step_seconds(config: "RunConfig", seconds: float | None) -> tuple[float | None, str]:
    """The seconds and their source, or None and the reason why they are not known."""
    if seconds is not None:
        return seconds, "as given"
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()

    from dipaco.launch.equal_bits import ask_for_equal_bits

    ask_for_equal_bits()  # A worker computes its steps in this way.

    import jax

    from dipaco.runs.forecast import step_time
    from dipaco.runs.programs import use_compilation_cache

    reason = step_time.why_not_trained_here(config) or step_time.why_not_tried(
        config, jax.default_backend(), step_time.free_memory()
    )
    if reason is not None:
        return None, reason
    use_compilation_cache()
    return step_time.step_seconds(config), "measured on this machine"


def _lines(found: "Forecast", step_seconds_are: str) -> Iterator[str]:
    """The forecast for a terminal of 80 columns."""
    from dipaco.evaluation.tables import link_name, quantity
    from dipaco.plural import counted

    yield (
        f"{found.name}: {counted(found.paths, 'path')} of "
        f"{quantity(found.parameters_per_path)} parameters, "
        f"{counted(found.modules, 'module')}, {quantity(found.parameters_total)} in all"
    )
    link = f"{link_name(found.megabits)} Mbit/s"
    yield f"{counted(found.workers, 'machine')}, each on a link of {link}, up and down together"
    if (waiting := found.workers - found.machines_at_work) > 0:
        of_phase = counted(found.paths_in_a_phase, "path")
        yield f"{waiting:,} of them would wait: a phase trains {of_phase}"
    if found.store_megabits is not None:
        yield f"bucket and database are behind {link_name(found.store_megabits)} Mbit/s"
    yield ""
    yield from _memory_lines(found)
    yield ""
    yield from _byte_lines(found)
    yield ""
    yield "Floating point operations"
    yield f"  {'an inner step of a path':<34}{found.step_flops:>10.3g}"
    yield f"  {'the run, base model included':<34}{found.run_flops:>10.3g}"
    yield ""
    if found.step_seconds is None:
        yield from _untimed_lines(found, step_seconds_are)
    else:
        yield from _time_lines(found, step_seconds_are)


def _memory_lines(found: "Forecast") -> Iterator[str]:
    from dipaco.evaluation.tables import num_bytes
    from dipaco.runs.forecast.memory import ACTIVATIONS

    yield "Memory of a worker"
    for name, count in found.memory.items():
        yield f"  {name:<34}{num_bytes(count):>10}"
    yield f"  {'in all':<34}{num_bytes(found.memory_bytes):>10}"
    yield f"  {'a process on a CPU':<34}{num_bytes(found.memory_on_cpu_bytes):>10}"
    yield f"  {'an outer step, instead':<34}{num_bytes(found.memory_of_outer_step_bytes):>10}"
    if found.memory[ACTIVATIONS] > found.memory_bytes / 2:
        yield "  Less of it: `inner.accumulation_steps`, `inner.rematerialise`."


def _byte_lines(found: "Forecast") -> Iterator[str]:
    from dipaco.evaluation.tables import num_bytes

    yield f"{'Bytes of a machine in a phase':<36}{'down':>10}{'up':>10}"
    for kind, each in found.bytes_of_a_phase.items():
        yield f"  {kind:<34}{num_bytes(each.down):>10}{num_bytes(each.up):>10}"
    down, up = num_bytes(found.bytes_down), num_bytes(found.bytes_up)
    yield f"  {'in all':<34}{down:>10}{up:>10}"
    step = {f"the largest step, of {found.largest_step}": found.largest_step_bytes}
    for name, count in (
        *(step.items() if found.largest_step else ()),
        ("base model, a machine's share", found.base_bytes),
        (f"of the run, {found.phases:,} phases", found.run_bytes),
        ("of the run in lock-step", found.lock_step_run_bytes),
        ("beside it, text that a path reads", found.token_bytes_once),
    ):
        yield f"  {name:<34}{num_bytes(count):>10} together"
    yield ""
    yield "Disk of the modular model in the run's bucket or folder, at most"
    for kind, count in found.kept_bytes.items():
        yield f"  {kind:<34}{num_bytes(count):>10}"
    yield f"  {'in all':<34}{num_bytes(sum(found.kept_bytes.values())):>10}"
    yield f"  {'of it, added by a phase':<34}{num_bytes(found.growth_bytes):>10}"


def _untimed_lines(found: "Forecast", reason: str) -> Iterator[str]:
    from dipaco.evaluation.tables import duration

    said = f"No step was tried here: {reason}. With `--step-seconds S` there are hours."
    yield from textwrap.wrap(said, WIDTH)
    seconds = duration(found.transfer_seconds)
    yield f"  {'transfers of a phase':<34}{seconds:>14}  {_link(found)}"


def _time_lines(found: "Forecast", step_seconds_are: str) -> Iterator[str]:
    """Every term of the formula, and the table of other codecs and lengths."""
    from dipaco.evaluation.tables import duration
    from dipaco.plural import counted

    assert found.step_seconds is not None  # Then nothing that follows from it is None.
    assert found.computing_seconds is not None
    assert found.hidden_seconds is not None
    assert found.phase_seconds is not None
    assert found.run_hours is not None
    yield "Time"
    yield f"  {'an inner step':<34}{_fine(found.step_seconds):>14}  {step_seconds_are}"
    factors = f"{found.steps:,} steps x {counted(found.paths_per_machine, 'path')}"
    yield f"  {'computing':<34}{duration(found.computing_seconds):>14}  {factors}"
    transfers = _link(found)
    yield f"  {'+ transfers':<34}{duration(found.transfer_seconds):>14}  {transfers}"
    if found.hidden_seconds:
        hidden = duration(found.hidden_seconds)
        yield f"  {'- transfers beside inner steps':<34}{hidden:>14}"
    yield f"  {'= a phase':<34}{duration(found.phase_seconds):>14}"
    yield f"  {'share of the time in computing':<34}{found.computing:>14.1%}"
    phases = f"base model + {found.phases:,} phases"
    yield f"  {'the run':<34}{_hours(found.run_hours):>14}  {phases}"
    if found.baseline_hours:
        yield f"  {'baselines, one machine, beside it':<34}{_hours(found.baseline_hours):>14}"
    yield ""
    yield "Share in computing, and time of all phases, for as many inner steps in all"
    lengths = sorted({each.steps for each in found.codecs})
    width = 1 + max(14, *(len(_cell(each)) for each in (*found.codecs, found.lock_step)))
    heads = "".join(f"{f'{steps:,} steps':>{width}}" for steps in lengths)
    yield f"  {'codec':<9}{'bits':>5}{heads}"
    for name in dict.fromkeys(each.codec for each in found.codecs):
        of_codec = [each for each in found.codecs if each.codec == name]
        cells = "".join(f"{_cell(each):>{width}}" for each in of_codec)
        mark = "*" if name == found.codec else " "
        yield f"{mark} {name:<9}{of_codec[0].bits:>5.3g}{cells}"
    yield f"  {'lock-step':<9}{32:>5}{_cell(found.lock_step):>{width}}   averages at every step"


def _link(found: "Forecast") -> str:
    of = {"machine": "bytes over a machine's link", "bucket": "bytes over the bucket's link"}
    return of.get(found.busiest_link, f"bytes to step {found.busiest_link}")


def _cell(each: "OtherPhase") -> str:
    assert each.hours is not None
    return f"{each.computing:.0%} {_hours(each.hours):>10}"


def _hours(hours: float) -> str:
    from dipaco.evaluation.tables import duration

    return duration(HOUR_SECONDS * hours) if hours < MANY_HOURS else f"{hours:,.0f} h"


def _fine(seconds: float) -> str:
    """A duration, in milliseconds below a second."""
    from dipaco.evaluation.tables import duration

    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)
