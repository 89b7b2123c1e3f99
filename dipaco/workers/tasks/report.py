"""`report`: the table, the curves and the picture of a run whose arms are all evaluated."""

import time

from dipaco.control.planning.tasks import Claim, Fact, StageDone
from dipaco.files import file_digest
from dipaco.receipt import Receipt
from dipaco.runs.opening import report_settings_now
from dipaco.runs.reading.report import make_report, write_files
from dipaco.runs.run import Run


def write_report(run: Run, claim: Claim) -> list[Fact]:
    """Writes report.json, report.md and report.png."""
    started = time.monotonic()
    report = make_report(run, report_settings_now(run))
    files = write_files(run, report)
    return [
        StageDone(
            stage="report",
            artifacts={
                f"report.{suffix}": Receipt(file.name, file_digest(file), file.stat().st_size)
                for suffix, file in files.items()
            },
            summary={row.name: row.perplexity for row in report.rows},
            seconds=time.monotonic() - started,
        )
    ]
