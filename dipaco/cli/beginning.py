"""A run that is begun, or gone on with: what `train` and `launch` share, options and all."""

import argparse
import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.config import add_set
from dipaco.cli.roles import add_database
from dipaco.cli.runs import add_run

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.runs.run import Run


def add_beginning(parser: argparse.ArgumentParser) -> None:
    """CONFIG, `--run`, what to start from, `--database`, `--tensorboard`, `--set`."""
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
    add_database(parser)
    add_set(parser)


@contextlib.contextmanager
def begun(options: argparse.Namespace, config: "RunConfig") -> Generator[tuple["Run", bool]]:
    """The run, with a place among those who work on it; True where it was begun just now."""
    from dipaco.runs.run import create_or_open, has_begun, taking_part
    from dipaco.workers.loop import recover
    from dipaco.workers.origin import check_origin, from_checkpoint, from_run

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
            yield opened, is_new
        finally:
            opened.ledger.close()


def leave_devices_alone() -> None:
    """For a process that only starts others: whoever asks JAX for a device takes its memory."""
    import jax

    jax.config.update("jax_platforms", "cpu")
