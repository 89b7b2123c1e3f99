"""A sweep's table as text, for a terminal and as Markdown: columns, orderings, levels."""

from collections.abc import Mapping

from dipaco.evaluation.tables import columns_as_markdown, columns_as_text, duration, quantity
from dipaco.sweeps.pairing import Interval, mean_interval, paired_difference
from dipaco.sweeps.table import BEST_PATH, LevelSummary, Ordering, SweepRow, SweepTable

MOST_OF_ONE_SEED = 10  # differences of a single seed that are listed; they cannot be resolved


def render_sweep_text(table: SweepTable) -> str:
    """For a terminal."""
    return columns_as_text(*_columns(table)) + "\n\n" + "\n".join(ordering_lines(table))


def render_sweep_markdown(table: SweepTable) -> str:
    """The same as Markdown, with levels and notes."""
    levels = "\n".join(
        f"| {row.name} | {_levels(row)} |" for row in table.rows if not row.name.endswith(BEST_PATH)
    )
    notes = "\n".join(f"- {note}" for note in table.notes)
    orderings = "\n".join(f"- {line}" for line in ordering_lines(table))
    missing = f"\nNot finished: {'; '.join(table.missing)}.\n" if table.missing else ""
    return f"""# Sweep {table.sweep}

{columns_as_markdown(*_columns(table))}
{missing}
{notes}

Orderings, by the paired difference over seeds:

{orderings}

| row | levels |
| :-- | :-- |
{levels}

![Perplexity against parameters, tokens and bytes sent](plot.png)
"""


def ordering_lines(table: SweepTable) -> list[str]:
    """Pairs of rows, the better one first: resolved differences, then unresolved ones, then some
    with only one common seed; each group with the largest first.
    """

    def line(ordering: Ordering, sign: str) -> str:
        spread = "" if ordering.spread is None else f" ± {ordering.spread:.2f}"
        return f"{ordering.better} {sign} {ordering.worse} by {ordering.difference:.2f}{spread}"

    ranked = sorted(table.orderings, key=lambda ordering: -ordering.difference)
    several = [ordering for ordering in ranked if ordering.spread is not None]
    single = [ordering for ordering in ranked if ordering.spread is None]
    lines = [f"resolved: {line(o, '<')}" for o in several if o.resolved]
    lines += [f"not resolved: {line(o, '?')}" for o in several if not o.resolved]
    lines += [f"not resolved, of one seed: {line(o, '?')}" for o in single[:MOST_OF_ONE_SEED]]
    if len(single) > MOST_OF_ONE_SEED:
        more = len(single) - MOST_OF_ONE_SEED
        lines.append(f"not resolved, of one seed: {more} more, in table.json")
    return lines


def _columns(table: SweepTable) -> tuple[list[str], list[list[str]]]:
    headings = [
        "row",
        "seeds",
        "perplexity",
        f"to {table.reference or 'first'}",
        "to DiLoCo",
        "path size",
        "total size",
        "steps",
        "tokens",
        "flops",
        "bytes sent",
        "time",
        "held equal",
    ]
    by_name = {row.name: row for row in table.rows}
    return headings, [_cells(table, row, by_name) for row in table.rows]


def _cells(table: SweepTable, row: SweepRow, by_name: Mapping[str, SweepRow]) -> list[str]:
    first = by_name[table.reference]
    own = mean_interval(dict(zip(row.seeds, row.perplexities, strict=True)))
    if row is first or row.name in table.apart:
        to_first, held = "", ""
    else:
        difference = paired_difference(
            dict(zip(first.seeds, first.perplexities, strict=True)),
            dict(zip(row.seeds, row.perplexities, strict=True)),
        )
        to_first = "" if difference is None else _difference(difference)
        held = ", ".join(row.held_equal).replace("parameters_per_path", "path size")
    against = table.to_diloco.get(row.name)
    return [
        row.name,
        str(len(row.seeds)),
        f"{own.mean:.2f}",
        to_first,
        "" if against is None else _signed(against, row.name),
        quantity(row.parameters_per_path),
        quantity(row.parameters_total),
        f"{row.steps:,}",
        quantity(row.tokens),
        quantity(row.flops),
        f"{quantity(row.bytes_sent)}B" if row.bytes_sent else "0",
        duration(row.seconds),
        held,
    ]


def _signed(ordering: Ordering, row: str) -> str:
    sign = -1 if ordering.better == row else 1
    return _difference(Interval(sign * ordering.difference, ordering.spread, tuple(ordering.seeds)))


def _difference(interval: Interval) -> str:
    if interval.half_width is None:
        return f"{interval.mean:+.2f}"
    mark = "" if interval.is_resolved else " (not resolved)"
    return f"{interval.mean:+.2f} ± {interval.half_width:.2f}{mark}"


def _levels(row: SweepRow) -> str:
    def one(level: LevelSummary) -> str:
        number = {0: "one per path", 1: "shared"}.get(level.experts, f"{level.experts}")
        return f"{level.name} ({number}): {', '.join(level.parts) or 'nothing'}"

    return "; ".join(one(level) for level in row.levels)
