"""The runs of a sweep, and the seeds they are run under."""

import pytest

from configs import toy
from dipaco.sweeps.errors import BadSeeds, NoSuchRow
from dipaco.sweeps.trials import seeds_of, trials_of

ROWS = {name: toy.run() for name in ("dense", "diloco", "flat")}


def test_trials_go_seed_by_seed():
    trials = trials_of("toy", ROWS, [3, 1], only=["flat", "dense"])
    assert [str(trial) for trial in trials] == [
        "dense, seed 3",
        "flat, seed 3",
        "dense, seed 1",
        "flat, seed 1",
    ]
    assert {trial.config.seed for trial in trials} == {1, 3}
    with pytest.raises(NoSuchRow, match=r"`toy` has no row `flatt`\. It has: dense, diloco"):
        trials_of("toy", ROWS, [0], only=["flatt"])


@pytest.mark.parametrize("text", ["", "0,,1", "0,1,0", "-1", "1.5", "one"])
def test_a_bad_list_of_seeds_is_refused(text):
    with pytest.raises(BadSeeds):
        seeds_of(text)


def test_seeds_are_read_in_the_order_given():
    assert seeds_of("2, 0,1") == [2, 0, 1]
