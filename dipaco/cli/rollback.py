"""Go back to an earlier phase of a run, as it was recorded, and train on from there.

  dipaco drain    --run runs/quickstart
  dipaco rollback --run runs/quickstart --phase 2
  dipaco resume   --run runs/quickstart

The modules of that phase, and what each path carried then, are read and checked first. What was
recorded later is set aside: it counts no more, and stays in the ledger (`dipaco status` shows how
much). How far back one can go is for `retention.snapshots` of the config to say. Another run from
an earlier phase, with fresh AdamW states: dipaco train --from RUN@PHASE.
"""

import argparse

from dipaco.cli.options import add_run

HELP = "go back to an earlier phase of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--phase", type=int, required=True, metavar="N", help="to the beginning of which phase"
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading
    from dipaco.workers.rollback import roll_back

    with reading(options.run) as opened:
        counts = roll_back(opened, options.phase)
        order = opened.ledger.meta.command().name
    aside = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"The run is at phase {options.phase} again. Set aside: {aside or 'nothing'}.")
    if order != "run":
        print(f"It was told to {order}: `dipaco resume --run {options.run}` lets workers go on.")
    return 0
