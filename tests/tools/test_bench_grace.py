"""`tools/bench_grace.py` with workers that train: one run of two phases, done again to its bits."""

import argparse

import bench_grace
import pytest


@pytest.mark.slow
def test_paced_workers_do_a_run_that_is_done_again(tmp_path):
    options = argparse.Namespace(
        phases=2, seed=0, spread=0.15, between=4.0, step_seconds=0.05, steps=2
    )
    run = bench_grace.PacedRun(options, tmp_path / "run", grace_seconds=0.1)
    result = run.result()
    assert result["contributions"] == 2 * 2 * 4  # phases, levels, paths
    assert run.differences() == []
