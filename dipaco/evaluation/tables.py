"""The results of a run: rows, the report that holds them, and both as text.

`report.json` is a `Report`, and every results table has `ReportRow`s. The text for a terminal and
the Markdown are made from the same cells.
"""

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence

import msgspec

from dipaco.evaluation.errors import BadReport

_MARK = r"[\\`*\[\]<>|&$~^]|(?<![^\W_])_|_(?![^\W_])"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One trained model, its perplexity and its costs."""

    name: str  # "dense", "modular", "modular_by_likelihood", ...
    # The end of the name where the finished modules of `arm` are routed otherwise or mixed:
    # "best_path", "by_likelihood", "every_16", "ensemble_2".
    variant: str = ""
    seed: int
    perplexity: float  # test, tokens from the router's prefix on
    bits_per_byte: float  # The same for each byte of text: comparable between tokenizers.
    tune_perplexity: float | None = None  # the same of the documents that settings are chosen by
    parameters_per_path: int  # read for one prediction
    parameters_total: int  # sum over all modules
    steps: int  # inner steps of one path, the base model's included
    steps_elsewhere: int = 0  # steps among these in another run (`--from DIR@PHASE`)
    tokens: int  # trained on by all paths together, the base model's included
    flops: float  # training, estimated from the model's shape
    # Bytes through the network interface of each machine, down and up together, had the run been in
    # a bucket and each path on a machine of its own (`runs/forecast/traffic.py`).
    bytes_per_machine: int
    # Counted above, and not sent: rows of the vocabulary that no contribution had to hold.
    bytes_left_out: int = 0
    seconds: float  # training, had one machine done it all
    machine_seconds: float  # each machine's training, the base model's included
    # Megabits a second of every machine's link -> `machine_seconds` and the transfers, in turn.
    link_seconds: dict[str, float]
    # Each document under the paths that it was not routed to, their log-likelihoods averaged.
    # None if not every path has scored it.
    wrong_path_perplexity: float | None = None

    @property
    def arm(self) -> str:
        """The name without the variant."""
        return self.name.removesuffix(f"_{self.variant}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathShare:
    """The documents routed to one path."""

    path: int
    documents: int  # documents of the training split
    domains: dict[str, int]  # documents by domain
    modules: list[str] = dataclasses.field(default_factory=list)  # one of each level: "early/0003"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseModel:
    """The model that the rows start from, but for modules of another run."""

    steps: int  # inner steps that it was trained
    perplexity: float  # test, as in a row


WRONG_PATH = "wrong_path"  # An evaluation has it as a row, the report beside the row.
BEST_PATH = "best_path"  # the variant that picks each document's path after the fact
PLAIN_WIDTH = 100  # Text that no terminal shows is so wide.
Curve = list[tuple[int, float]]  # (steps, value), steps ascending


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a run."""

    rows: list[ReportRow]
    name: str = ""  # of the run
    # One machine after the seconds of a machine of the modular model. It depends on a clock, as no
    # other row does.
    equal_seconds: ReportRow | None = None
    base: BaseModel | None = None  # None: rows start from something else, or it was not evaluated
    shards: list[PathShare] = dataclasses.field(default_factory=list)
    curves: dict[str, Curve] = dataclasses.field(default_factory=dict)  # test perplexity
    corpus: dict[str, str | int | float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)  # sentences for the reader

    @property
    def table(self) -> list[ReportRow]:
        """All rows, in the form that is shown."""
        if self.equal_seconds is None:
            return self.rows
        place = sum(not row.name.startswith("modular") for row in self.rows)
        return [*self.rows[:place], self.equal_seconds, *self.rows[place:]]

    def to_json(self) -> bytes:
        """UTF-8 JSON, indented. Equal reports give equal bytes."""
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


def link_name(megabits: float) -> str:
    """A rate as `link_seconds` names it: 20.0 -> "20"."""
    return f"{megabits:g}"


def seconds_over_link(seconds: float, num_bytes: float, megabits: float) -> float:
    """Seconds of computing, and then of a transfer over a link of so many megabits a second."""
    return seconds + 8 * num_bytes / (1e6 * megabits)


def render_text(rows: Sequence[ReportRow], width: int = PLAIN_WIDTH) -> str:
    """The rows for a terminal of `width` columns, each compared with the first. Columns that are
    equal in all rows of a run or follow from the rest, and times over all links but the first, are
    left out. Columns that the width has no room for are named in the last line.
    """
    columns = _columns(rows)
    links = [link_heading(link) for link in rows[0].link_seconds][:1]
    shown = {heading: columns[heading] for heading in (*_ON_TERMINAL, *links)}
    return columns_within(shown, width, ["time", *links, *_FIRST_TO_GO], "report.md")


def render_markdown(rows: Sequence[ReportRow]) -> str:
    """All columns as a Markdown table."""
    columns = _columns(rows)
    return columns_as_markdown(list(columns), _lines(columns))


def columns_within(
    columns: Mapping[str, Sequence[str]], width: int, first_to_go: Sequence[str], elsewhere: str
) -> str:
    """Aligned columns, up to a width, and a line that names the columns left out.

    Args:
      columns: heading -> a cell for each row. The first column names the rows.
      first_to_go: headings of columns that may be left out, the least important first.
      elsewhere: the file that has all columns.
    """
    shown, left_out = dict(columns), []
    text = columns_as_text(list(shown), _lines(shown))
    for heading in first_to_go:
        if max(map(len, text.splitlines())) <= width:
            break
        if shown.pop(heading, None) is not None:
            left_out.append(heading)
            text = columns_as_text(list(shown), _lines(shown))
    if not left_out:
        return text
    said = f"In {elsewhere}, not in {width} columns: {', '.join(left_out)}."
    return f"{text}\n{textwrap.fill(said, width)}"


def columns_as_text(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right. Long headings have
    several lines.
    """
    wrapped = [textwrap.wrap(heading, 9, break_long_words=False) for heading in headings]
    height = max(map(len, wrapped))
    heads = zip(*([""] * (height - len(words)) + words for words in wrapped), strict=True)
    table = [*heads, *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(headings))]
    text = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return "\n".join([*text[:height], "-" * max(map(len, text)), *text[height:]])


def columns_as_markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    rule = [":--", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


def literal(text: str, pattern: str = _MARK) -> str:
    """One line of Markdown that shows a text as it is. What Markdown, HTML or a formula would take
    for more is written as a number, which every renderer reads in the same way, also in tables.
    """
    return re.sub(
        pattern,
        lambda found: found[0] if len(found[0]) > 1 else f"&#{ord(found[0])};",
        " ".join(text.split()),
    )


def notes_as_markdown(notes: Sequence[str]) -> str:
    """A list of sentences, in which backticks stand around code, and all else is `literal`."""
    return "\n".join(f"- {literal(note, f'`[^`]*`|{_MARK}')}" for note in notes)


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


def num_bytes(count: int) -> str:
    """A count of bytes: 0, 33.5 MB."""
    return f"{quantity(count)}B" if count else "0"


def link_heading(link: str) -> str:
    return f"time at {link} Mbit/s"


# What a prompt costs (the size of a path) and what machines exchange come first. Tokens are last
# to go: rows that differ in them are easily misread.
_ON_TERMINAL = (
    "row",
    "perplexity",
    "change",
    "bits per byte",
    "path size",
    "bytes per machine",
    "tokens",
    "time",
)
_FIRST_TO_GO = ("change", "bits per byte", "path size", "bytes per machine", "tokens")


def _columns(rows: Sequence[ReportRow]) -> dict[str, list[str]]:
    """Heading -> a cell for each row."""
    first = rows[0]
    columns = {
        "row": [row.name for row in rows],
        "seed": [str(row.seed) for row in rows],
        "perplexity": [f"{row.perplexity:.2f}" for row in rows],
        "change": [_change(row, first) for row in rows],
        "bits per byte": [f"{row.bits_per_byte:.3f}" for row in rows],
        "tune": [perplexity_cell(row.tune_perplexity) for row in rows],
        "path size": [quantity(row.parameters_per_path) for row in rows],
        "total size": [quantity(row.parameters_total) for row in rows],
        "steps": [f"{row.steps:,}" for row in rows],
        "tokens": [quantity(row.tokens) for row in rows],
        "flops": [quantity(row.flops) for row in rows],
        "bytes per machine": [num_bytes(row.bytes_per_machine) for row in rows],
        "time": [duration(row.seconds) for row in rows],
    }
    for link in first.link_seconds:
        columns[link_heading(link)] = [duration(row.link_seconds[link]) for row in rows]
    return columns


def perplexity_cell(value: float | None) -> str:
    """Empty where it was not measured."""
    return "" if value is None else f"{value:.2f}"


def _change(row: ReportRow, first: ReportRow) -> str:
    return "" if row is first else f"{100 * (row.perplexity / first.perplexity - 1):+.1f} %"


def _lines(columns: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    return list(zip(*columns.values(), strict=True))
