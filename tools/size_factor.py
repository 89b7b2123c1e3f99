"""How large a dense model paths equal: a table and the front page's picture, from a sweep's table.

    python tools/size_factor.py runs/size_factor/table.json --picture configs/size_factor.png

Rows are called as in `configs/ablations/size_factor.py`. Each contender comes with the rate that
was best for it on tune documents. Its *factor* is the size of the dense model, as a multiple of a
path's size, that would have its perplexity: between two dense models the logarithm of perplexity is
taken to be linear in the logarithm of size. Factors are paired by seed, with half of the 95 %
interval.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from support.command_line import parser_of

from dipaco.evaluation.style import DENSE, LOOKS, MODULAR, log_ticks, styled, tidy
from dipaco.evaluation.tables import columns_as_markdown, num_bytes, seconds_over_link
from dipaco.sweeps.pairing import mean_interval
from dipaco.sweeps.table import SweepRow, SweepTable, by_seed, tune_by_seed


class Contender(NamedTuple):
    """A contender at its best rate."""

    name: str
    rate: float
    row: SweepRow

    @property
    def paths(self) -> int:
        """Number of paths. 1 for a dense model."""
        return math.prod(map(int, self.name.split()[0].split("x"))) if self.is_grid else 1

    @property
    def is_grid(self) -> bool:
        return self.name[0].isdigit()


def contenders(table: SweepTable) -> list[Contender]:
    """All contenders, dense models by size and then paths. A rate is the better one on tune
    documents under the seeds that all rates of its contender have.
    """
    rates: dict[str, dict[float, SweepRow]] = {}
    for row in table.rows:
        if not row.variant:
            name, _, rate = row.name.partition(" rate ")
            rates.setdefault(name, {})[float(rate)] = row
    each = []
    for name, rows in rates.items():
        seeds = set.intersection(*(set(row.seeds) for row in rows.values()))
        best = min(rows, key=lambda rate: sum(tune_by_seed(rows[rate])[seed] for seed in seeds))
        each.append(Contender(name, best, rows[best]))
    return sorted(each, key=lambda one: (one.is_grid, one.row.parameters_total))


def factors(one: Contender, dense: Sequence[Contender]) -> list[float]:
    """The factor of a contender under each seed that it shares with the dense models. A perplexity
    beyond the largest or the smallest dense model goes on along the last line.
    """
    smallest = dense[0].row.parameters_total
    sizes = np.log([each.row.parameters_total / smallest for each in dense])
    found = []
    for seed, perplexity in by_seed(one.row).items():
        values = [by_seed(each.row).get(seed) for each in dense]
        if None in values:
            continue
        logs = np.log(np.array(values, float))
        at = int(np.clip(np.sum(logs > np.log(perplexity)), 1, len(dense) - 1))
        slope = (sizes[at] - sizes[at - 1]) / (logs[at] - logs[at - 1])
        found.append(float(np.exp(sizes[at] + slope * (np.log(perplexity) - logs[at]))))
    return found


def with_interval(values: Sequence[float], decimals: int) -> str:
    """`12.34 ± 0.56`, or the mean alone with fewer than three values."""
    mean, half_width, _ = mean_interval(dict(enumerate(values)))
    text = f"{mean:.{decimals}f}"
    return text if half_width is None else f"{text} ± {half_width:.{decimals}f}"


def as_table(each: Sequence[Contender], dense: Sequence[Contender], megabits: float) -> str:
    headings = ["row", "rate", "perplexity", "equals dense of", "a prompt touches", "in all"]
    headings += ["tokens", "FLOP", "bytes per machine", f"hours at {megabits:g} Mbit/s", "seeds"]
    lines = [
        [
            one.name,
            f"{one.rate:g}",
            with_interval(one.row.perplexities, 2),
            "" if one in dense else f"{with_interval(factors(one, dense), 1)} x",
            f"{one.row.parameters_per_path / 1e6:.2f} M",
            f"{one.row.parameters_total / 1e6:.2f} M",
            f"{one.row.tokens / 1e6:.2f} M",
            f"{one.row.flops / 1e12:.0f} T",
            num_bytes(one.row.bytes_per_machine),
            f"{hours(one.row, megabits):.2f}",
            ", ".join(map(str, one.row.seeds)),
        ]
        for one in each
    ]
    return columns_as_markdown(headings, lines)


def hours(row: SweepRow, megabits: float) -> float:
    return seconds_over_link(row.machine_seconds, row.bytes_per_machine, megabits) / 3600


def draw(each: Sequence[Contender], dense: Sequence[Contender], file: Path) -> None:
    """Perplexity against the parameters that a prompt touches."""
    with styled(6.5, 3.6) as figure:
        axes = figure.add_subplot()
        size = [one.row.parameters_per_path for one in dense]
        axes.plot(
            size,
            [one.row.perplexity for one in dense],
            color=LOOKS[DENSE].colour,
            marker=LOOKS[DENSE].mark,
            label="one dense model",
        )
        grids = [one for one in each if one.is_grid]
        axes.plot(
            [one.row.parameters_per_path for one in grids],
            [one.row.perplexity for one in grids],
            color=LOOKS[MODULAR].colour,
            marker=LOOKS[MODULAR].mark,
            linestyle="",
            label="paths, of which a prompt has one",
        )
        for one in grids:
            text = f"{one.paths} paths, {one.name.split()[1]}"
            at = (one.row.parameters_per_path, one.row.perplexity)
            axes.annotate(text, at, (7, -3), textcoords="offset points")
        log_ticks(axes, "x", size)
        axes.set(xlabel="parameters that a prompt touches", ylabel="perplexity")
        tidy(axes, "Equally many steps", "each at its best rate")
        axes.legend()
        figure.savefig(file)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="`table.json` of the sweep")
    parser.add_argument("--link", type=float, default=20.0, metavar="MEGABITS")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="drawn there as well")
    options = parser.parse_args()
    each = contenders(msgspec.json.decode(options.table.read_bytes(), type=SweepTable))
    dense = [one for one in each if one.name.startswith("dense ")]
    if len(dense) < 2:
        sys.exit(f"{options.table} has {len(dense)} dense models, and two are needed.")
    print(as_table(each, dense, options.link))
    if options.picture:
        draw(each, dense, options.picture)


if __name__ == "__main__":
    main()
