"""A sweep's table as text, for a terminal and as Markdown: columns, orderings, levels."""

import csv
import dataclasses
import io
import itertools
import textwrap

from dipaco.evaluation.tables import (
    BEST_PATH,
    PLAIN_WIDTH,
    columns_as_markdown,
    columns_within,
    duration,
    link_heading,
    notes_as_markdown,
    num_bytes,
    perplexity_cell,
    quantity,
)
from dipaco.sweeps.pairing import LEAST_SEEDS, in_words
from dipaco.sweeps.table import LevelSummary, Ordering, SweepRow, SweepTable

LONGEST_REFERENCE = 20  # characters of its name in a heading
NOT_ON_TERMINAL = (
    "wrong path",
    "path size",
    "steps",
    "tokens",
    "flops",
    "held equal",
)
UNRESOLVED = " (not resolved)"
MOST_OF_FEW_SEEDS = 10  # differences without an interval that are listed


def render_sweep_text(table: SweepTable, width: int = PLAIN_WIDTH) -> str:
    """The table for a terminal of `width` columns, without the same modules routed otherwise.
    Columns that most rows have in common, that are empty, or that have no room are left out. ?
    marks a difference that is not resolved.
    """
    headings, lines = _columns(table)
    lines = [line for row, line in zip(table.rows, lines, strict=True) if not row.variant]
    more = len(table.rows) - len(lines)
    cells = {
        heading: [line[number].replace(UNRESOLVED, " ?") for line in lines]
        for number, heading in enumerate(headings)
        if heading not in NOT_ON_TERMINAL and any(line[number] for line in lines)
    }
    links = [link_heading(link) for link in reversed(_links(table))]
    first_to_go = [
        *links,
        "bytes per machine",
        "time",
        "bits per byte",
        "total size",
        "seeds",
    ]
    orderings = [
        textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
        for line in ordering_lines(table)
    ]
    text = columns_within(cells, width, first_to_go, "table.md")
    said = f"In table.md alone: {', '.join(NOT_ON_TERMINAL)}"
    said += f"; {more} rows of the same modules routed otherwise." if more else "."
    if any(UNRESOLVED in cell for line in lines for cell in line):
        said += " ? = not resolved."
    text += f"\n{textwrap.fill(said, width)}"
    return "\n".join([text, "", *orderings])


def render_sweep_csv(table: SweepTable) -> str:
    """The rows with all of their numbers, for a spreadsheet. A rate of a link is a column."""
    records = [
        {name: value for name, value in dataclasses.asdict(row).items() if name != "levels"}
        for row in table.rows
    ]
    for record in records:
        record |= {f"seconds_at_{link}": n for link, n in record.pop("link_seconds").items()}
        lists = {name: value for name, value in record.items() if isinstance(value, list | tuple)}
        record |= {name: " ".join(map(str, value)) for name, value in lists.items()}
    written = io.StringIO()
    writer = csv.DictWriter(written, list(dict.fromkeys(itertools.chain(*records))))
    writer.writeheader()
    writer.writerows(records)
    return written.getvalue()


def render_sweep_markdown(table: SweepTable) -> str:
    """The same as Markdown, with levels and notes."""
    levels = "\n".join(
        f"| {row.name} | {_levels(row)} |" for row in table.rows if row.variant != BEST_PATH
    )
    orderings = "\n".join(f"- {line}" for line in ordering_lines(table))
    missing = f"\nNot finished: {'; '.join(table.missing)}.\n" if table.missing else ""
    return f"""# {table.sweep}

{columns_as_markdown(*_columns(table))}
{missing}
{notes_as_markdown(table.notes)}

Orderings, by the paired difference over seeds:

{orderings}

| row | levels |
| :-- | :-- |
{levels}

![Rows by perplexity, how far each is from the first row, and what it costs](plot.png)
"""


def ordering_lines(table: SweepTable) -> list[str]:
    """Pairs of rows, the better one first: resolved differences, then unresolved ones, then some
    with too few common seeds for an interval, each group with the largest first. Then rows that are
    equal, of which only the first is compared with others, and rows that are equal so far.
    """

    def line(ordering: Ordering, sign: str) -> str:
        spread = "" if ordering.spread is None else f" ± {ordering.spread:.2f}"
        return f"{ordering.better} {sign} {ordering.worse} by {ordering.difference:.2f}{spread}"

    equal_rows = _equal_rows(table)
    repeated = {name for names in equal_rows for name in names[1:]}
    different = [
        ordering
        for ordering in table.orderings
        if not ordering.is_equal and not {ordering.better, ordering.worse} & repeated
    ]
    ranked = sorted(different, key=lambda ordering: -ordering.difference)
    several = [ordering for ordering in ranked if len(ordering.seeds) >= LEAST_SEEDS]
    few = [ordering for ordering in ranked if len(ordering.seeds) < LEAST_SEEDS]
    lines = [f"resolved: {line(o, '<')}" for o in several if o.resolved]
    lines += [f"not resolved: {line(o, 'below')}" for o in several if not o.resolved]
    for ordering in few[:MOST_OF_FEW_SEEDS]:
        number = len(ordering.seeds)
        seeds = "one seed" if number == 1 else f"{number} seeds (intervals need {LEAST_SEEDS})"
        lines.append(f"not resolved, of {seeds}: {line(ordering, 'below')}")
    if len(few) > MOST_OF_FEW_SEEDS:
        more = len(few) - MOST_OF_FEW_SEEDS
        lines.append(f"not resolved, of fewer than {LEAST_SEEDS} seeds: {more} more, in table.json")
    lines += [f"equal under every seed: {' = '.join(names)}" for names in equal_rows]
    return lines + [
        f"equal under {in_words(o.seeds)}, which both have on the same text: {o.worse} = {o.better}"
        for o in table.orderings
        if o.is_equal and not {o.better, o.worse} & repeated
    ]


def _equal_rows(table: SweepTable) -> list[list[str]]:
    """Groups of rows of the same seeds that are equal, in the order of the table."""
    seeds = {row.name: row.seeds for row in table.rows}
    groups: list[set[str]] = []
    for o in table.orderings:
        if not (o.is_equal and o.seeds == seeds[o.better] == seeds[o.worse]):
            continue
        pair = {o.better, o.worse}
        joined = [group for group in groups if group & pair]
        groups = [group for group in groups if group not in joined]
        groups.append(pair.union(*joined))
    return [[row.name for row in table.rows if row.name in group] for group in groups]


def _columns(table: SweepTable) -> tuple[list[str], list[list[str]]]:
    headings = [
        "row",
        "seeds",
        "perplexity",
        f"to {table.reference if 0 < len(table.reference) <= LONGEST_REFERENCE else 'first row'}",
        "bits per byte",
        "tune",
        "wrong path",
        "path size",
        "total size",
        "steps",
        "tokens",
        "flops",
        "bytes per machine",
        "time",
        *(link_heading(link) for link in _links(table)),
        "held equal",
    ]
    return headings, [_cells(table, row) for row in table.rows]


def _links(table: SweepTable) -> list[str]:
    """The rates that the rows' times are given for."""
    return list(dict.fromkeys(link for row in table.rows for link in row.link_seconds))


def _cells(table: SweepTable, row: SweepRow) -> list[str]:
    to_first = held = ""
    if row.name != table.reference and row.name not in table.apart:
        held = ", ".join(row.held_equal).replace("parameters_per_path", "path size")
        to_first = _difference(row)
    return [
        row.name,
        str(len(row.seeds)),
        f"{row.perplexity:.2f}",
        to_first,
        f"{row.bits_per_byte:.3f}",
        perplexity_cell(row.tune_perplexity),
        perplexity_cell(row.wrong_path_perplexity),
        quantity(row.parameters_per_path),
        quantity(row.parameters_total),
        f"{row.steps:,}",
        quantity(row.tokens),
        quantity(row.flops),
        num_bytes(row.bytes_per_machine),
        duration(row.seconds),
        *(
            duration(row.link_seconds[link]) if link in row.link_seconds else ""
            for link in _links(table)
        ),
        held,
    ]


def _difference(row: SweepRow) -> str:
    if row.difference is None:
        return ""
    if row.difference == 0 and not row.spread:
        return "equal"
    if row.spread is None:
        return f"{row.difference:+.2f}"
    mark = "" if abs(row.difference) > row.spread else UNRESOLVED
    return f"{row.difference:+.2f} ± {row.spread:.2f}{mark}"


def _levels(row: SweepRow) -> str:
    def one(level: LevelSummary) -> str:
        number = {0: "one per path", 1: "shared"}.get(level.experts, f"{level.experts}")
        return f"{level.name} ({number}): {', '.join(level.parts) or 'nothing'}"

    return "; ".join(one(level) for level in row.levels)
