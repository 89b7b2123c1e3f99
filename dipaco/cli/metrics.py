"""The options `--metrics-port` and `--metrics-host`, of every role."""

import argparse
import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from dipaco.cli.bounds import LAST_PORT, check_count

if TYPE_CHECKING:
    from dipaco.runs.run import Run


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Both options."""
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="answer Prometheus there: GET /metrics (extra `metrics`)",
    )
    parser.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="where to listen for that (default: 127.0.0.1, this machine alone)",
    )


@contextlib.contextmanager
def counted(run: "Run", options: argparse.Namespace, callbacks: Any) -> Generator[Any]:
    """`callbacks`, and metrics beside it where they are asked for."""
    if options.metrics_port is None:
        yield callbacks
        return
    from dipaco.observe.metrics import Both, served

    check_count("--metrics-port", options.metrics_port, 0, LAST_PORT)
    with served(options.metrics_port, run.open_ledger, options.metrics_host) as metrics:
        yield Both(callbacks, metrics)
