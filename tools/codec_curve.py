"""Shows the cost of contributions in fewer bits, phase by phase, from a sweep of codecs.

    python tools/codec_curve.py runs/fewer_bits --ending "phases 40"

Reads the finished rows of `configs/ablations/fewer_bits.py`, or of any sweep, and compares them
with the one that sends most. Bits a parameter are counted from the messages of the run, their
headers included, over all values of a path's modules. Rows of the vocabulary that a path does not
hold are not sent. Perplexities are shown for evaluated phases, in brackets their distance above the
first row. The last line is one JSON object.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from support.command_line import parser_of

from dipaco.config import MODULAR
from dipaco.runs.opening import reading
from dipaco.sweeps.folder import is_finished


class Curve(NamedTuple):
    """One finished row under one seed."""

    name: str
    bits_up: float  # a parameter, of a path's contributions of one phase
    bits_down: float  # all modules that it fetches
    perplexities: dict[int, float]  # phase -> perplexity


def curve_of(folder: Path) -> Curve:
    """A finished row, read from its ledger. `folder` is `DIR/rows/NAME/SEED`."""
    with reading(folder) as run:
        (row,) = (
            r
            for r in json.loads(run.layout.report("json").read_text())["rows"]
            if r["name"] == MODULAR
        )
        progress = run.ledger.progress
        values = row["parameters_per_path"] * progress.training_totals(MODULAR).path_phases
        sent = progress.bytes_by_kind()
        evaluations = run.ledger.facts.evaluations()
    by_phase = {each.phase: each.perplexity for each in evaluations if each.arm == MODULAR}
    return Curve(
        folder.parent.name.replace("_", " "),
        8 * sent["contributions_sent"] / values,
        8 * sent["modules_fetched"] / values,
        dict(sorted(by_phase.items())),
    )


def table(curves: list[Curve]) -> str:
    """A Markdown table. Its first row is the one that sends most."""
    first, *_ = curves
    phases = sorted(set().union(*(curve.perplexities for curve in curves)))
    lines = [
        "| row | bits up | bits down | " + " | ".join(f"after {phase}" for phase in phases) + " |",
        "| :-- " + "| --: " * (2 + len(phases)) + "|",
    ]
    for curve in curves:
        cells = []
        for phase in phases:
            here, there = curve.perplexities.get(phase), first.perplexities.get(phase)
            more = "" if curve is first or not there or not here else f" ({here / there - 1:+.1%})"
            cells.append("" if here is None else f"{here:.2f}{more}")
        bits = f"{curve.bits_up:.3f} | {curve.bits_down:.3f}"
        lines.append(f"| {curve.name} | {bits} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="of the sweep")
    parser.add_argument("--ending", default="", help="only rows whose names end so")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    options = parser.parse_args()
    ending = options.ending.replace(" ", "_")
    folders = options.folder.glob(f"rows/*{ending}/{options.seed}")
    curves = [curve_of(folder) for folder in sorted(folders) if is_finished(folder)]
    if not curves:
        print(
            f"{options.folder} has no finished row under seed {options.seed} that ends with "
            f"`{options.ending}`: run `dipaco ablate` first.",
            file=sys.stderr,
        )
        return 1
    curves.sort(key=lambda curve: -curve.bits_up)
    print(table(curves))
    print(json.dumps([curve._asdict() for curve in curves]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
