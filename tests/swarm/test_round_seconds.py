"""How long a round may take: slow senders have the time that they need, one that lies has not."""

import pytest

from dipaco.swarm.planning.shares import Link
from dipaco.swarm.planning.timing import MAX_ROUND_SECONDS, round_seconds_of

LEADER = Link(up=1e8, down=1e8, sends=False)
FAST, SLOW, LIAR = (Link(up=speed, down=speed) for speed in (1e8, 5e5, 1e4))
NUM_VALUES, STEP_SECONDS = 25_000_000, 60.0


def most(*senders, num_values=NUM_VALUES, step_seconds=STEP_SECONDS):
    return round_seconds_of([LEADER, *senders], num_values, 1.0, step_seconds)[1]


def own_seconds(link, num_values=NUM_VALUES):
    return 4.0 * num_values / link.up


@pytest.mark.parametrize(
    "senders",
    [
        [SLOW],
        [FAST, SLOW],
        [FAST, SLOW, SLOW],
        [FAST] * 2 + [SLOW] * 2,
        [FAST] * 3 + [SLOW] * 3,
        [FAST] * 8 + [SLOW] * 2,
        [FAST] * 20 + [SLOW] * 10,
    ],
)
def test_slow_senders_have_twice_the_time_for_their_own_vector_at_least(senders):
    assert most(*senders) >= 2.0 * own_seconds(SLOW)


@pytest.mark.parametrize("num_fast", [2, 3, 9, 40])
def test_for_one_that_says_that_it_is_slow_the_others_do_not_wait(num_fast):
    fast = [FAST] * num_fast
    lied = most(*fast, LIAR, step_seconds=1.0)
    assert lied < 1.6 * most(*fast, step_seconds=1.0)


def test_of_two_the_slow_one_has_an_hour_at_most_or_what_the_fast_one_may_need():
    assert most(FAST, LIAR) == MAX_ROUND_SECONDS
    assert most(FAST, SLOW, num_values=10**9) == MAX_ROUND_SECONDS
    assert most(FAST, SLOW, num_values=10**10) == most(FAST, FAST, num_values=10**10)


def test_a_round_may_take_as_long_as_its_step_so_far():
    assert most(FAST, FAST, FAST, LIAR, step_seconds=5000.0) == 5000.0
