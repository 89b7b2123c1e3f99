"""The runs of a sweep, and the seeds they are run under."""

import pytest

from configs import toy
from dipaco.sweeps.errors import BadSeeds, NoSuchRow
from dipaco.sweeps.trials import named, seeds_of, trials_of

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


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        (["flat", "dense"], ["flat", "dense"]),
        (["d*", "dense"], ["dense", "diloco"]),
        (["*l*"], ["diloco", "flat"]),
        (["f*t"], ["flat"]),
        (["2 [*"], ["2 [of 3]"]),
        (["2*3*"], ["2 [of 3]", "2*3", "2*3 more"]),
        (["2*3"], ["2*3"]),
        ([], []),
    ],
)
def test_rows_are_named_whole_or_with_stars_for_any_letters(given, rows):
    known = [*ROWS, "2 [of 3]", "2*3", "2*3 more"]
    assert named("toy", known, given) == rows


@pytest.mark.parametrize("name", ["flatt", "fla", "f*x", "*F*", ""])
def test_a_name_that_no_row_has_is_refused(name):
    with pytest.raises(NoSuchRow, match=r"`toy` has no row `.*`\. It has: dense, diloco"):
        named("toy", ROWS, ["dense", name])


@pytest.mark.parametrize("text", ["", "0,,1", "0,1,0", "-1", "1.5", "one"])
def test_a_bad_list_of_seeds_is_refused(text):
    with pytest.raises(BadSeeds):
        seeds_of(text)


def test_seeds_are_read_in_the_order_given():
    assert seeds_of("2, 0,1") == [2, 0, 1]
