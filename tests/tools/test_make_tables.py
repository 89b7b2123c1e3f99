"""`tools/make_tables.py`: reports of several seeds, over any link."""

import dataclasses

import make_tables

from dipaco.evaluation.tables import Report
from tests.evaluation.test_tables import DENSE, MODULAR


def test_a_link_that_no_report_was_made_for_has_a_column_of_its_own():
    reports = [
        Report(rows=[dataclasses.replace(row, seed=seed) for row in (DENSE, MODULAR)])
        for seed in (0, 1)
    ]
    head, _, dense, modular = make_tables.table(reports, [20.0, 0.5])
    assert head.endswith("| bytes per machine | time | time at 20 Mbit/s | time at 0.5 Mbit/s |")
    assert dense.endswith("| 0 | 31.2 s | 31.2 s | 31.2 s |")
    # 30.9 MB are 247 megabits.
    assert modular.endswith("| 30.9 MB | 31.2 s | 43.6 s | 8 min 45 s |")
    assert "| -12.0 % |" in modular
