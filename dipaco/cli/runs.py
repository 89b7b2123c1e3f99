"""Which run a verb is about: the option `--run`."""

import argparse

from dipaco.store.address import Address


def add_run(parser: argparse.ArgumentParser) -> None:
    """`--run`, as an `Address`."""
    parser.add_argument(
        "--run",
        type=Address.parse,
        required=True,
        metavar="RUN",
        help="the run's folder, or s3://BUCKET/NAME, gs://BUCKET/NAME",
    )
