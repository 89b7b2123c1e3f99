"""Brings the reports of several runs together: one table, perplexity per seed and in the mean.

    python tools/make_tables.py runs/quickstart-0 runs/quickstart-1 runs/quickstart-2 --links 20 100

Each row is compared with `dense` of the same seed, and the shown change is the mean of the ratios.
Times are medians for one machine that does everything, and for each of several machines over links
of so many megabits a second.
"""

import statistics
from pathlib import Path

from support.command_line import parser_of

from dipaco.evaluation.tables import (
    Report,
    ReportRow,
    duration,
    link_heading,
    link_name,
    num_bytes,
    quantity,
    seconds_over_link,
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="folders of finished runs"
    )
    parser.add_argument("--links", nargs="+", type=float, default=[20.0], metavar="MEGABITS")
    options = parser.parse_args()
    reports = [Report.from_json((folder / "report.json").read_bytes()) for folder in options.runs]
    print("\n".join(table(reports, options.links)))


def table(reports: list[Report], links: list[float]) -> list[str]:
    """Markdown: a line per row name, a column per seed."""
    by_seed = [{row.name: row for row in report.table} for report in reports]
    seeds = [next(iter(rows.values())).seed for rows in by_seed]
    head = ["row", *(f"seed {seed}" for seed in seeds), "mean", "to dense", "tokens"]
    head += ["bytes per machine", "time", *(link_heading(link_name(link)) for link in links)]
    lines = [head, [":--", *["--:"] * (len(head) - 1)]]
    for name in by_seed[0]:
        rows = [rows[name] for rows in by_seed]
        ratios = [
            row.perplexity / rows["dense"].perplexity
            for row, rows in zip(rows, by_seed, strict=True)
        ]
        lines.append(_line(name, rows, ratios, links))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _line(name: str, rows: list[ReportRow], ratios: list[float], links: list[float]) -> list[str]:
    own_seconds = statistics.median(row.machine_seconds for row in rows)
    return [
        f"`{name}`",
        *(f"{row.perplexity:.1f}" for row in rows),
        f"{statistics.mean(row.perplexity for row in rows):.1f}",
        f"{100 * (statistics.mean(ratios) - 1):+.1f} %" if name != "dense" else "",
        quantity(rows[0].tokens),
        num_bytes(rows[0].bytes_per_machine),
        duration(statistics.median(row.seconds for row in rows)),
        *(
            duration(seconds_over_link(own_seconds, rows[0].bytes_per_machine, link))
            for link in links
        ),
    ]


if __name__ == "__main__":
    main()
