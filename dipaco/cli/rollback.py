"""Go back to an earlier phase of a run, and train on from there.

  dipaco drain    --run runs/quickstart
  dipaco rollback --run runs/quickstart --phase 2
  dipaco resume   --run runs/quickstart

The modules of that phase and the snapshots of all paths are read and checked first. Later facts are
set aside: they stay in the ledger but no longer count (`dipaco status` shows how many). The setting
`retention.snapshots` decides how far back is possible: of a finished run one snapshot fewer is
kept, so by default it goes back by one phase. For another run from an earlier phase, with fresh
AdamW states: dipaco train --from RUN@PHASE.
"""

import argparse

from dipaco.cli.options import add_run
from dipaco.cli.run_commands import print_order

HELP = "go back to an earlier phase of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--phase",
        type=int,
        required=True,
        metavar="N",
        help="the phase to go back to, at its start",
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading
    from dipaco.workers.rollback import roll_back, wait_for_silent_workers

    with reading(options.run) as opened:
        wait_for_silent_workers(opened.ledger, print)
        counts = roll_back(opened, options.phase)
        order = opened.ledger.meta.command().name
    aside = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"The run is at phase {options.phase} again. Set aside: {aside or 'nothing'}.")
    print_order(order, options.run)
    return 0
