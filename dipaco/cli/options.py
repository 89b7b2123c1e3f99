"""Options that several verbs have, and the checks of their values.

Nothing here loads JAX or NumPy: `--help` and a typing error answer at once.
"""

import argparse
import contextlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dipaco.cli.errors import OutputNotLocal, PathNeeded
from dipaco.cli.parser import path_given
from dipaco.control.names import name_of as name_of
from dipaco.errors import BadSetting, NoSuchPath
from dipaco.runs.reading import releases
from dipaco.runs.reading.releases import check_path as check_path
from dipaco.store.address import Address

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.control.planning.release import Release
    from dipaco.runs.run import Run

DAY_SECONDS = 86400.0
MAX_PROCESSES = 10_000  # a larger number is a typing error
LAST_PORT = 65535
TRACKERS = {  # the trackers of `observe.trackers`
    "tensorboard": "write TensorBoard event files",
    "trackio": "send numbers to trackio",
    "wandb": "send numbers to Weights & Biases; WANDB_MODE=offline: to files",
}
CONFIG_HELP = "a file with a function `run()`, or the name of a shipped config: `quickstart`"


def add_run(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """`--run`, as an `Address`."""
    parser.add_argument(
        "--run",
        type=Address.parse,
        required=is_required,
        metavar="RUN",
        help="the run's folder, or s3://BUCKET/NAME, gs://BUCKET/NAME",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def output_path(text: str) -> Path:
    """The value of an option that names an output of a verb. Raises `OutputNotLocal` for a URL,
    even with a single slash. A drive (`C:/x`) is no URL.
    """
    if re.match(r"[A-Za-z][\w+.-]+:/", text):
        raise OutputNotLocal(given=text)
    return path_given(text)


def add_run_start(parser: argparse.ArgumentParser) -> None:
    """Adds what every verb that begins a run has: CONFIG, `--run`, the model to start from,
    `--database`, `--set`.
    """
    parser.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG_HELP)
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
        help="another run to start from: its modules, base model, router and tokenizer; DIR@base: "
        "its text, tokenizer, base model and router, under any topology",
    )
    add_database(parser)
    add_set(parser)


def begun(
    options: argparse.Namespace, config: "RunConfig", **checks: Any
) -> contextlib.AbstractContextManager[tuple["Run", bool]]:
    """The run that the options of `add_run_start` ask for, as `begun_run` begins or opens it."""
    from dipaco.workers.process import begun_run

    return begun_run(
        options.run,
        config,
        options.database,
        init_from=options.init_from,
        start_from=options.start_from,
        **checks,
    )


def add_trackers(parser: argparse.ArgumentParser) -> None:
    """The options of `TRACKERS`."""
    for tracker, does in TRACKERS.items():
        parser.add_argument(
            f"--{tracker}",
            action="append_const",
            const=tracker,
            dest="trackers",
            default=[],
            help=f"also {does} (extra `{tracker}`)",
        )


def add_set(parser: argparse.ArgumentParser) -> None:
    """`--set NAME=VALUE ...`, as often as wanted. `Parser` takes several after one `--set`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="NAME=VALUE",
        help="change a setting, e.g. inner.steps=50; several may follow",
    )


def add_database(parser: argparse.ArgumentParser) -> None:
    """`--database`."""
    parser.add_argument(
        "--database",
        metavar="URL",
        help="postgresql://HOST/NAME, or env:VARIABLE with such a URL; else SQLite in the folder",
    )


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """The options of a worker that is one program over several machines."""
    parser.add_argument(
        "--hosts",
        type=int,
        metavar="H",
        help="machines of this one worker (default: its TPU slice's or Slurm step's, else 1)",
    )
    parser.add_argument(
        "--host-index", type=int, default=0, metavar="I", help="which of them this is: 0 to H-1"
    )
    parser.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of the first host, where all connect"
    )


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """`--metrics-port` and `--metrics-host`."""
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics there: GET /metrics (extra `metrics`)",
    )
    parser.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address to listen on for metrics (default: 127.0.0.1, this machine only)",
    )


def check_metrics(options: argparse.Namespace) -> None:
    """Raises `BadSetting` if `--metrics-port` is no port, `ExtraMissing` or `CannotListen`."""
    if options.metrics_port is None:
        return
    check_between("--metrics-port", options.metrics_port, 0, LAST_PORT)
    from dipaco.observe.metrics import check_extra, check_port

    check_extra()
    check_port(options.metrics_port, options.metrics_host)


@contextlib.contextmanager
def with_metrics(run: "Run", options: argparse.Namespace, callbacks: Any) -> Generator[Any]:
    """`callbacks`, joined by metrics if `--metrics-port` is given."""
    if options.metrics_port is None:
        yield callbacks
        return
    check_metrics(options)
    from dipaco.observe.metrics import CombinedCallbacks, serve_metrics

    with serve_metrics(options.metrics_port, run.open_ledger, options.metrics_host) as metrics:
        yield CombinedCallbacks(callbacks, metrics)


def add_release(parser: argparse.ArgumentParser) -> None:
    """`--run`, `--arm` and `--phase`, which is also called `--release`."""
    add_run(parser)
    parser.add_argument(
        "--arm",
        default="modular",
        help="modular (the default), dense, data_parallel, dense_equal_tokens or base",
    )
    parser.add_argument(
        "--phase",
        "--release",
        dest="phase",
        metavar="PHASE",
        type=int,
        default=None,
        help="the release of this phase (default: the newest)",
    )


def add_rule(parser: argparse._ActionsContainer) -> None:
    """`--rule`."""
    parser.add_argument(
        "--rule",
        choices=("features", "likelihood"),
        default=None,
        help="how a path is chosen (default: the run's `routing.rule`)",
    )


def find_release(opened: "Run", options: argparse.Namespace) -> "Release":
    """The release that the options name. Raises `NoSuchArm`, `NotAvailable`."""
    return releases.find_release(opened, options.arm, options.phase)


def path_of(given: int | None, num_paths: int) -> int:
    """`--path`, which a run of one path does not need. Raises `PathNeeded`, `NoSuchPath`."""
    if given is None:
        if num_paths > 1:
            raise PathNeeded(paths=num_paths, last=num_paths - 1)
        return 0
    if not 0 <= given < num_paths:
        raise NoSuchPath(path=given, last=num_paths - 1)
    return given


def option_of(name: str) -> str:
    """`path_bytes` -> `--path-bytes`."""
    return f"--{name.replace('_', '-')}"


def check_between(
    option: str, value: float | None, least: float, most: float = MAX_PROCESSES
) -> None:
    """Raises `BadSetting`. None (the option was left out) passes, NaN does not."""
    if value is not None and not least <= value <= most:
        raise BadSetting(name=option, value=value, expected=f"{least:g} to {most:g}")


def check_lease(seconds: float) -> None:
    """Raises `BadSetting`: `--lease-seconds` is too short to renew, or longer than a day."""
    check_between("--lease-seconds", seconds, 1.0, DAY_SECONDS)


def check_memory_fraction(fraction: float | None) -> None:
    """Raises `BadSetting`: `--memory-fraction` is no share of a GPU's memory."""
    if fraction is not None and not 0 < fraction <= 1:
        raise BadSetting(
            name="--memory-fraction", value=fraction, expected="above 0, and at most 1"
        )


def read_keys(file: Path | None) -> tuple[str, ...]:
    """The API keys of a file, one a line. Empty without a file. Raises `BadKeyFile`."""
    from dipaco.cli.errors import BadKeyFile

    if file is None:
        return ()
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeyFile(file=file, problem=error) from error
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines, start=1):
        if not line.isprintable():
            problem = f"the key in line {number} holds a character that cannot be seen or sent"
            raise BadKeyFile(file=file, problem=problem)
    keys = tuple(line for line in lines if line)
    if not keys:
        raise BadKeyFile(file=file, problem="there is no key in it")
    return keys
