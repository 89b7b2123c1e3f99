"""Which release a reading command looks at: the arguments that choose it."""

import argparse
from typing import Any

from dipaco.cli.runs import add_run


def add_release(parser: argparse.ArgumentParser, phase: str = "--phase") -> None:
    """`--run`, `--arm`, `--phase`; the last may go by another name."""
    add_run(parser)
    parser.add_argument(
        "--arm",
        default="modular",
        help="modular (the default), dense, dense_equal_tokens or base",
    )
    parser.add_argument(
        phase,
        dest="phase",
        metavar="PHASE",
        type=int,
        default=None,
        help="the release of this phase; the newest if not given",
    )


def find_release(opened: Any, options: argparse.Namespace) -> Any:
    """The release. Raises `NoSuchArm`, `NotAvailable`."""
    from dipaco.cli.errors import NoSuchArm

    known = [arm.name for arm in (opened.plan.base, *opened.plan.arms)]
    if options.arm not in known:
        raise NoSuchArm(arm=options.arm, known=", ".join(known))
    return opened.ledger.release(options.arm, options.phase)


def check_path(path: int | None, release: Any) -> None:
    """Raises `NoSuchPath`."""
    from dipaco.errors import NoSuchPath

    if path is not None and not 0 <= path < len(release.paths):
        raise NoSuchPath(path=path, last=len(release.paths) - 1)
