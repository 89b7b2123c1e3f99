"""What every task reads of an open run."""

from dipaco.runs.opening import create_or_open
from tests.runs.test_opening import CONFIG, OTHER


def test_seeds_depend_on_the_run_s_seed_and_on_what_they_are_for(tmp_path):
    seeds = set()
    for number, config in enumerate((CONFIG, OTHER)):
        run, _ = create_or_open(tmp_path / str(number), config)
        seeds |= {run.seed_for("rows", 0), run.seed_for("rows", 1), run.seed_for("router")}
        run.ledger.close()
    assert len(seeds) == 6
