"""Trains a run in this process, as `dipaco train` does, and opens it."""

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dipaco.config import RunConfig
from dipaco.control.names import name_of
from dipaco.errors import BadSetting, missing_packages_named
from dipaco.launch.equal_bits import ask_for_equal_bits
from dipaco.library.console import ConsoleReporter
from dipaco.library.opened import OpenedRun
from dipaco.library.opened import open as open_for_reading
from dipaco.observe.events import Event
from dipaco.observe.trackers import check_trackers
from dipaco.overrides import load_config
from dipaco.runs.meshes import check_devices
from dipaco.runs.programs import use_compilation_cache
from dipaco.runs.rules import Rules
from dipaco.store.address import Address
from dipaco.workers.process import begun_run, work


@missing_packages_named()
def run(
    config: RunConfig | Path | str,
    folder: Path | str,
    *,
    progress: bool | Callable[[Event], None] = True,
    trackers: Sequence[str] = (),
    database: str | None = None,
    init_from: Path | str | None = None,
    start_from: str | None = None,
    rules: Rules | None = None,
) -> OpenedRun:
    """Trains a run, or continues it. After an interruption the same call continues to the same
    bits. On a GPU this needs a process in which JAX has not computed yet, or `XLA_FLAGS` that ask
    for equal bits.

    Args:
      config: the config, a config file, or the name of a shipped config (`quickstart`).
      folder: the run's folder, or s3://BUCKET/NAME, gs://BUCKET/NAME.
      progress: True prints a bar and a line for every event, False nothing. A function is called
        with every event instead, and `str(event)` is its line. `events.jsonl` has them anyway.
      trackers: any of `tensorboard`, `trackio`, `wandb`, which get the numbers too. Each needs the
        extra of that name.
      database: postgresql://HOST/NAME, or env:VARIABLE. None = SQLite in the folder.
      init_from: a Hugging Face checkpoint that a new run starts from.
      start_from: `DIR@PHASE` of another run that a new run starts from.
      rules: your outer step, router or path loss for a new run, which records their names. None =
        the rules of a run that has begun, or the built-in ones.

    Returns:
      The run, opened for reading. It is unfinished if it was told to stop (SIGTERM, `dipaco
        drain`).

    Raises:
      RuleUnnamed, RuleNotImportable, RuleDiffers, RunOfOtherRules: a rule cannot be imported by
        name, or is not the one that the run began with.
      CannotTrainHere: the devices of this process do not fit a new run without `database`.
      BadMesh, DevicesUnfit, KernelUnavailable: they do not fit a run that has begun and whose text
        is prepared.
      NoSuchTracker, ExtraMissing: a tracker is not known, or not installed. Nothing was begun.
      TrackerRefused: a tracker does not take the run.
      BadConfigFile, RunBusy, RunOfOtherConfig, TaskFailed: errors that `dipaco train` reports as
        well.
    """
    if isinstance(trackers, str):
        expected = f"a list of names, as [{trackers!r}]"
        raise BadSetting(name="trackers", value=trackers, expected=expected)
    trackers = tuple(trackers)  # an iterator can be read only once
    check_trackers(trackers)
    if not isinstance(config, RunConfig):
        config = load_config(Path(config))
    ask_for_equal_bits()
    use_compilation_cache()
    address = Address.of(folder)
    checkpoint = None if init_from is None else Path(init_from)
    listener = progress if callable(progress) else None
    stream = sys.stdout if progress is True else io.StringIO()  # output is discarded
    with (
        begun_run(
            address,
            config,
            database,
            init_from=checkpoint,
            start_from=start_from,
            rules=rules,
            reads_text=True,
            check_machine=check_devices,
        ) as (opened, is_new),
        ConsoleReporter(opened, trackers=trackers, stream=stream, listener=listener) as console,
    ):
        console.greet(is_new=is_new)
        work(opened, name_of(None), console)
    return open_for_reading(folder)
