import dataclasses

import markdown_it
import pytest

from dipaco.evaluation.errors import BadReport
from dipaco.evaluation.tables import (
    PathShare,
    Report,
    ReportRow,
    columns_as_markdown,
    duration,
    link_name,
    literal,
    notes_as_markdown,
    quantity,
    render_markdown,
    render_text,
    seconds_over_link,
)

DENSE = ReportRow(
    name="dense",
    seed=0,
    perplexity=100.0,
    bits_per_byte=1.66,
    parameters_per_path=840_000,
    parameters_total=840_000,
    steps=280,
    tokens=573_440,
    flops=2.9e12,
    bytes_per_machine=0,
    seconds=31.25,
    machine_seconds=31.25,
    link_seconds={"20": 31.25},
)
MODULAR = dataclasses.replace(
    DENSE,
    name="modular",
    perplexity=88.0,
    bits_per_byte=1.61,
    tune_perplexity=90.0,
    parameters_total=2_400_000,
    bytes_per_machine=30_864_197,
    link_seconds={"20": 43.6},
)


def test_a_report_survives_json():
    report = Report(
        rows=[DENSE, MODULAR],
        shards=[PathShare(path=0, documents=3, domains={"en_law": 3})],
        curves={"dense": [(200, 150.0), (280, 100.0)]},
        corpus={"documents": 3},
        notes=["One seed."],
    )
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b'{"rows": [{"name": "dense"}]}', b"\xff"])
def test_data_that_is_no_report_is_refused(data):
    with pytest.raises(BadReport, match="cannot read the report"):
        Report.from_json(data)


def test_text_is_aligned_and_compares_with_the_first_row():
    above, head, rule, dense, modular = render_text([DENSE, MODULAR]).splitlines()
    assert above.split() == ["bits", "per", "bytes", "per", "time", "at"]
    assert head.split() == [
        *("row", "perplexity", "change", "byte", "path", "size", "machine", "tokens"),
        *("time", "20", "Mbit/s"),
    ]
    assert set(rule) == {"-"}
    assert "-12.0 %" in modular
    assert "%" not in dense
    assert len(dense) == len(modular)


def test_a_terminal_of_100_columns_holds_the_table_however_long_it_took_and_however_many_links():
    links = {"20": 359_940.0, "100": 359_940.0}
    row = dataclasses.replace(
        MODULAR,
        name="modular_ensemble_renewed",
        perplexity=12_345.67,
        steps=88_000,
        bytes_per_machine=999_000_000_000,
        seconds=359_940.0,
        link_seconds=links,
    )
    first = dataclasses.replace(DENSE, perplexity=22_345.67, link_seconds=links)
    lines = render_text([first, row]).splitlines()
    assert max(map(len, lines)) <= 100
    assert "time at 100 Mbit/s" in render_markdown([row])


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_columns_are_chosen_by_the_width_and_the_others_named(width):
    row = dataclasses.replace(MODULAR, name="modular_ensemble_renewed", perplexity=12_345.67)
    text = render_text([DENSE, row], width)
    assert max(map(len, text.splitlines())) <= width
    assert "12345.67" in text
    shown, _, named = text.partition("In report.md, not in")
    assert "time" in named
    assert ("time at 20 Mbit/s" in " ".join(named.split())) == (width < 100)
    assert ("tokens" in shown) == (width > 40)


def test_a_machine_computes_and_then_transfers():
    assert seconds_over_link(10.0, 2_500_000, 20.0) == 11.0  # 20 megabits
    assert seconds_over_link(10.0, 0, 20.0) == 10.0
    assert [link_name(link) for link in (20.0, 0.5, 1000.0)] == ["20", "0.5", "1000"]


def test_markdown_has_all_columns():
    lines = render_markdown([DENSE, MODULAR]).splitlines()
    assert lines[3] == (
        "| modular | 0 | 88.00 | -12.0 % | 1.610 | 90.00 | 840 k | 2.4 M | 280 | 573 k | 2.9 T "
        "| 30.9 MB | 31.2 s | 43.6 s |"
    )
    assert len({line.count("|") for line in lines}) == 1


def test_a_name_is_shown_by_markdown_as_it_is():
    """Also in a table. Between backticks, a sentence has code."""
    names = ["a&b", "&amp;", "$5 to $10", "<img src=x>", "x|y", "a\\|b", "`c`", "_d_", "~~e~~"]
    names += ["*f*", "[g](h)", "![i](j)", "a_b", "\\", "<!--", "</td>", "^2^", "家\u3000b", "a\tb"]
    reader = markdown_it.MarkdownIt("gfm-like", {"linkify": False})
    lines = [[literal(name), "1"] for name in names]
    table = reader.parse(columns_as_markdown(["name", "n"], lines))
    cells = [token.children for token in table if token.type == "inline"]
    assert [[each.content for each in cell] for cell in cells[2::2]] == [
        [" ".join(name.split())] for name in names
    ]
    assert {each.type for cell in cells for each in cell} == {"text"}
    assert literal("a_b, 5 %: 2-3.") == "a_b, 5 %: 2-3."
    said = reader.render(notes_as_markdown(["`a$b` is $5 <b>"]))
    assert "<li><code>a$b</code> is $5 &lt;b&gt;</li>" in said


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (812, "812"), (999, "999"), (1000, "1 k"), (839_808, "840 k"), (999_600, "1 M"),
     (2.9e12, "2.9 T"), (3e21, "3e+03 E")],
)  # fmt: skip
def test_quantities_in_three_digits(value, text):
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.25, "8.2 s"), (59.96, "1 min 00 s"), (245, "4 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations_in_readable_units(seconds, text):
    assert duration(seconds) == text
