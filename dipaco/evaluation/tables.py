"""The results of a run: rows, the report that holds them, and both as text.

`report.json` is a `Report`; every results table has `ReportRow`s. The text for a terminal and the
Markdown are made from the same cells.
"""

import dataclasses
from collections.abc import Sequence

import msgspec

from dipaco.evaluation.errors import BadReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One trained model, its perplexity and its costs."""

    name: str  # "dense", "modular", ...
    seed: int
    perplexity: float  # validation, tokens from the router's prefix on
    parameters_per_path: int  # read for one prediction
    parameters_total: int  # of all modules together
    steps: int  # inner steps of one path, the base model's included
    tokens: int  # trained on by all paths together, the base model's included
    flops: float  # of training, estimated from the model's shape
    bytes_sent: int  # contributions up and modules down, had paths been separate machines
    seconds: float  # of training, had one machine done it all


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathShare:
    """The documents routed to one path."""

    path: int
    documents: int  # of the training split
    domains: dict[str, int]  # documents by domain


Curve = list[tuple[int, float]]  # (steps, value), steps ascending


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a run."""

    rows: list[ReportRow]
    shards: list[PathShare] = dataclasses.field(default_factory=list)
    curves: dict[str, Curve] = dataclasses.field(default_factory=dict)  # validation perplexity
    losses: dict[str, dict[str, Curve]] = dataclasses.field(default_factory=dict)  # row, path
    corpus: dict[str, str | int | float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)  # sentences for the reader

    def to_json(self) -> bytes:
        """UTF-8 JSON, indented; equal reports give equal bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> "Report":
        """The report that `to_json` wrote.

        Raises:
          BadReport: not JSON, or a field is missing or has another type.
        """
        try:
            return msgspec.json.decode(data, type=Report)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadReport(problem=error) from error


def render_text(rows: Sequence[ReportRow]) -> str:
    """The rows as aligned columns for a terminal, each compared with the first."""
    return columns_as_text(_HEADINGS, _cells(rows))


def render_markdown(rows: Sequence[ReportRow]) -> str:
    """The same columns as a Markdown table."""
    return columns_as_markdown(_HEADINGS, _cells(rows))


def columns_as_text(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    table = [headings, *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(headings))]
    text = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])


def columns_as_markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


def quantity(value: float) -> str:
    """A count in three digits: 0, 812, 3.28 k, 840 k, 1.2 P."""
    for unit in ("", " k", " M", " G", " T", " P"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}" if unit else f"{value:.0f}"
        value /= 1000
    return f"{value:.3g} E"


def duration(seconds: float) -> str:
    """Seconds in readable units: 8.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


_HEADINGS = [
    "row",
    "seed",
    "perplexity",
    "change",
    "path size",
    "total size",
    "steps",
    "tokens",
    "flops",
    "bytes sent",
    "time",
]


def _cells(rows: Sequence[ReportRow]) -> list[list[str]]:
    return [
        [
            row.name,
            str(row.seed),
            f"{row.perplexity:.2f}",
            f"{100 * (row.perplexity / rows[0].perplexity - 1):+.1f} %" if index else "",
            quantity(row.parameters_per_path),
            quantity(row.parameters_total),
            f"{row.steps:,}",
            quantity(row.tokens),
            quantity(row.flops),
            f"{quantity(row.bytes_sent)}B" if row.bytes_sent else "0",
            duration(row.seconds),
        ]
        for index, row in enumerate(rows)
    ]
