"""Remove what a finished run does not need any more.

  dipaco clean --run runs/quickstart --dry-run        what would be removed
  dipaco clean --run runs/quickstart

Removed are snapshots with AdamW's states, contributions, outer states, modules that are not of the
newest release of an arm, and in a bucket the copies of shards' tokens. Left are the report, the
newest release of every arm, the base model, routers, scores, the text and the ledger: generate,
serve, export, evaluate, inspect and the tables of sweeps need no more. Going back, going on with
more phases, releases of earlier phases and --from at an earlier phase are given up, for ever. A run
that is not finished is refused. Killed, the same command goes on.
"""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dipaco.cli.options import add_json, add_run

if TYPE_CHECKING:
    from dipaco.workers.cleaning import Cleaning

HELP = "remove what a finished run does not need any more"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.workers.cleaning import clean

    cleaning = clean(options.run, is_dry=options.dry_run)
    lines = _lines(cleaning, str(options.run), is_dry=options.dry_run)
    print(json.dumps(cleaning._asdict()) if options.json else "\n".join(lines))
    return 0


def _lines(cleaning: "Cleaning", run: str, *, is_dry: bool) -> Iterator[str]:
    from dipaco.observe.details import sizes

    if not cleaning.removed:
        yield "There is nothing to remove."
    else:
        yield f"{'Would be removed' if is_dry else 'Removed'}: {sizes(cleaning.removed)}."
    yield f"Left: {sizes(cleaning.left)}."
    releases = ", ".join(f"{arm} at phase {phase}" for arm, phase in cleaning.releases.items())
    yield f"Still there: the report, routers, scores, the text, and the releases {releases}."
    yield f"Other runs can start from {run}@{cleaning.phase} and {run}@base."
    yield (
        "No longer possible: going back (`dipaco rollback`), going on with more phases, other "
        "releases, and starting from another phase."
    )
