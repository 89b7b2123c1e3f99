"""Say what a run will need, before anything starts: a worker's memory, bytes of every machine,
hours, and the share of the time in computing; and what other codecs or longer phases would bring.

  dipaco plan configs/quickstart.py
  dipaco plan configs/quickstart.py --workers 4 --mbit 20 --set outer.codec=int8
  dipaco plan configs/paper_16x16.py --step-seconds 1.4       the step of your accelerator

A few inner steps are taken on this machine to time one, unless `--step-seconds` says it or a step
is too large to be tried; the time is remembered. Bytes are those of a run in a bucket, where a path
stays with its machine and any machine steps a module; one thing is done after another, but for
`outer.delay`. Beside it, lock-step: as many machines that average gradients at every step.
"""

import argparse
import dataclasses
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import CONFIG_HELP, DAY_SECONDS, add_set, check_between, check_count

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.runs.forecast import Forecast, LockStep, OtherPhase

HELP = "what a run will need: memory, bytes, hours"
LEAST_MEGABITS, MOST_MEGABITS = 1e-3, 1e6
LEAST_STEP_SECONDS = 1e-6
WIDTH = 80  # of a terminal, in columns
NOBODY_STEPS = (
    "`outer.delay` saves no time here: machines that train on step no modules meanwhile. Start a "
    "`dipaco executor`, or a machine more, and plan with `--no-outer-steps` or `--workers`."
)
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
        help="of the link of bucket and database, which all share (default: never the bottleneck)",
    )
    parser.add_argument(
        "--step-seconds", type=float, metavar="S", help="that an inner step of a path takes"
    )
    parser.add_argument(
        "--no-outer-steps",
        action="store_true",
        help="of these machines: an executor beside the bucket steps the modules",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.overrides import load_config

    # Before JAX is loaded: a typing error answers at once.
    config = load_config(options.config, options.overrides)
    check_count("--workers", options.workers, 1)
    check_between("--mbit", options.mbit, LEAST_MEGABITS, MOST_MEGABITS)
    check_between("--store-mbit", options.store_mbit, LEAST_MEGABITS, MOST_MEGABITS)
    check_between("--step-seconds", options.step_seconds, LEAST_STEP_SECONDS, DAY_SECONDS)

    from dipaco.runs.forecast import forecast

    step, source = _step_seconds(config, options.step_seconds)
    found = forecast(
        config,
        workers=options.workers,
        megabits=options.mbit,
        store_megabits=options.store_mbit,
        step_seconds=step,
        steps_elsewhere=options.no_outer_steps,
    )
    if options.json:
        print(json.dumps({**dataclasses.asdict(found), "step_seconds_are": source}))
    else:
        print("\n".join(_lines(found, source)))
    return 0


def _step_seconds(config: "RunConfig", seconds: float | None) -> tuple[float | None, str]:
    """Seconds, and how they are known; None, and why they are not."""
    if seconds is not None:
        return seconds, "as given"
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()

    from dipaco.launch.equal_bits import ask_for_equal_bits

    ask_for_equal_bits()  # its steps are those of a worker

    import jax

    from dipaco.caches import cache_folder
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.runs.step_time import (
        free_memory,
        step_time,
        why_not_trained_here,
        why_not_tried,
    )

    reason = why_not_trained_here(config) or why_not_tried(
        config, jax.default_backend(), free_memory()
    )
    if reason is not None:
        return None, reason
    use_compilation_cache(cache_folder() / "compiled")
    measured = step_time(config, cache_folder())
    how = "remembered from" if measured.is_remembered else "measured on"
    return measured.seconds, f"{how} this machine"


def _lines(found: "Forecast", step_seconds_are: str) -> Iterator[str]:
    """For a terminal of 80 columns."""
    from dipaco.evaluation.tables import duration, link_name, num_bytes, quantity
    from dipaco.plural import counted
    from dipaco.runs.worker_memory import ACTIVATIONS

    link = f"{link_name(found.megabits)} Mbit/s"
    yield (
        f"{found.name}: {counted(found.paths, 'path')} of "
        f"{quantity(found.parameters_per_path)} parameters, "
        f"{counted(found.modules, 'module')}, {quantity(found.parameters_total)} in all"
    )
    yield f"{counted(found.workers, 'machine')}, each on a link of {link}, up and down together"
    if (waiting := found.workers - found.machines_at_work) > 0:
        of_phase = counted(found.paths_in_a_phase, "path")
        yield f"{waiting:,} of them would wait: a phase trains {of_phase}"
    if found.store_megabits is not None:
        yield f"bucket and database are behind {link_name(found.store_megabits)} Mbit/s"
    yield ""
    yield "Memory of a worker"
    for name, count in found.memory.items():
        yield f"  {name:<34}{num_bytes(count):>10}"
    yield f"  {'in all':<34}{num_bytes(found.memory_bytes):>10}"
    yield f"  {'an outer step, instead':<34}{num_bytes(found.memory_of_outer_step_bytes):>10}"
    if found.memory[ACTIVATIONS] > found.memory_bytes / 2:
        yield "  Less of it: `inner.accumulation_steps`, `inner.rematerialise`."
    yield ""
    yield f"{'Bytes of a machine in a phase':<36}{'down':>10}{'up':>10}"
    for kind, each in found.bytes_of_a_phase.items():
        yield f"  {kind:<34}{num_bytes(each.down):>10}{num_bytes(each.up):>10}"
    down, up = num_bytes(found.bytes_down), num_bytes(found.bytes_up)
    yield f"  {'in all':<34}{down:>10}{up:>10}"
    of_run = num_bytes(found.run_bytes)
    yield f"  {f'of the run, {found.phases:,} phases':<34}{of_run:>10} together"
    text = num_bytes(found.token_bytes_once)
    yield f"  {'text of a path, once, at most':<34}{text:>10}"
    yield ""
    lock_step = found.lock_step
    if found.step_seconds is None:
        said = f"No step was tried here: {step_seconds_are}. With `--step-seconds S` "
        yield from textwrap.wrap(f"{said}there are hours. Transfers on {link}:", WIDTH)
        yield f"  {'a phase':<34}{duration(found.transfer_seconds):>14}"
        yield f"  {'lock-step, as many steps':<34}{duration(lock_step.transfer_seconds):>14}"
        enough = duration(found.step_seconds_for_goal)
        yield f"  {'95 % computing from steps of':<34}{enough:>14}"
        return
    assert found.computing_seconds is not None  # as little as what else follows from a step's
    assert found.phase_seconds is not None
    assert found.run_hours is not None
    yield f"Time on {link}"
    yield f"  {'an inner step':<34}{_fine(found.step_seconds):>14} {step_seconds_are}"
    steps = f"computing, {found.steps:,} steps"
    yield f"  {steps:<34}{duration(found.computing_seconds):>14}"
    yield f"  {'transfers':<34}{duration(found.transfer_seconds):>14}"
    yield f"  {'a phase':<34}{duration(found.phase_seconds):>14}"
    yield f"  {'share of the time in computing':<34}{found.computing:>14.1%}"
    yield f"  {'95 % from steps of':<34}{_fine(found.step_seconds_for_goal):>14}"
    yield f"  {'the run, base model included':<34}{_hours(found.run_hours):>14}"
    if found.baseline_hours:
        yield f"  {'baselines, one machine, beside it':<34}{_hours(found.baseline_hours):>14}"
    if found.delay and not found.delay_hides_transfers:
        yield from textwrap.wrap(NOBODY_STEPS, WIDTH)
    yield ""
    yield "Share in computing, and time of all phases, for as many inner steps in all"
    lengths = sorted({each.steps for each in found.codecs})
    heads = "".join(f"{f'{steps:,} steps':>15}" for steps in lengths)
    yield f"  {'codec':<10}{'bits':>5}{heads}"
    for name in dict.fromkeys(each.codec for each in found.codecs):
        of_codec = [each for each in found.codecs if each.codec == name]
        cells = "".join(f"{_cell(each):>15}" for each in of_codec)
        mark = "*" if name == found.codec else " "
        yield f"{mark} {name:<10}{of_codec[0].bits:>5.3g}{cells}"
    yield f"  {'lock-step':<10}{32:>5}{_cell(lock_step):>15}   averages at every step"


def _cell(each: "OtherPhase | LockStep") -> str:
    assert each.hours is not None
    return f"{each.computing:.0%} {_hours(each.hours):>10}"


def _hours(hours: float) -> str:
    from dipaco.evaluation.tables import duration

    return duration(HOUR_SECONDS * hours) if hours < MANY_HOURS else f"{hours:,.0f} h"


def _fine(seconds: float) -> str:
    """Steps of toys take milliseconds."""
    from dipaco.evaluation.tables import duration

    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)
