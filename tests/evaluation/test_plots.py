import pytest

from dipaco.evaluation.plots import draw_report
from dipaco.evaluation.tables import PathShare, Report, ReportRow


def row(name, perplexity):
    return ReportRow(
        name=name,
        seed=0,
        perplexity=perplexity,
        parameters_per_path=1,
        parameters_total=1,
        steps=20,
        tokens=1,
        flops=1.0,
        bytes_sent=0,
        seconds=1.0,
    )


@pytest.mark.parametrize("num_paths", [1, 4, 40])
def test_a_report_is_drawn_for_few_and_for_many_paths(tmp_path, num_paths):
    report = Report(
        rows=[row("dense", 30.0), row("modular", 25.0), row("modular_best_path", 24.0)],
        shards=[
            PathShare(path=path, documents=path + 1, domains={f"domain_{path % 7}": path + 1})
            for path in range(num_paths)
        ],
        curves={"dense": [(0, 90.0), (20, 30.0)], "modular": [(0, 90.0), (20, 25.0)]},
    )
    draw_report(report, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_report_is_drawn_too(tmp_path):
    draw_report(Report(rows=[]), tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 1000
