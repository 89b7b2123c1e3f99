"""How long a reducer is set aside, and how much later a late sender is expected."""

import pytest

from dipaco.swarm.planning.track_records import (
    MAX_DOUBLINGS,
    SET_ASIDE_ROUNDS,
    PastRounds,
)


def rounds_aside(past, session="ana/1"):
    """Rounds until a session may add up."""
    begins = past.count
    past.count += 1
    while not past.may_add_up(session):
        past.count += 1
    return past.count - begins - 1


def test_a_reducer_that_failed_adds_up_again_after_rounds_of_which_more_are_left_each_time():
    past = PastRounds()
    for times in range(MAX_DOUBLINGS + 2):
        past.note_unreliable("ana/1")
        assert rounds_aside(past) == SET_ASIDE_ROUNDS * 2 ** min(times, MAX_DOUBLINGS)
        assert past.may_add_up("bo/1")
    past.note_unreliable("ana/1")
    past.begin_term()
    assert rounds_aside(past) == 0, "its numbers were those of the last term"


def test_a_holder_that_comes_as_another_session_each_time_adds_up_by_none():
    past = PastRounds()
    for session in ("eve/1", "eve/2"):
        past.note_unreliable(session)
    assert rounds_aside(past, "eve/3") == 0, "several machines may fail at once"
    past.note_unreliable("eve/3")
    assert rounds_aside(past, "eve/4") == SET_ASIDE_ROUNDS
    assert past.may_add_up("bo/1")
    past.note_unreliable("eve/4")
    past.count += SET_ASIDE_ROUNDS
    assert past.may_add_up("eve/5"), "nor is it held against others for long"


def test_a_round_that_goes_well_takes_a_failure_off_each_of_its_reducers():
    past = PastRounds()
    past.faults.update({"ana/1": 2, "bo/1": 1, "away/1": 3})
    past.note_good(["ana/1", "bo/1", "eve/1"], [])
    assert past.faults == {"ana/1": 1, "away/1": 3}


def test_a_holder_that_hides_a_part_twice_hardly_ever_adds_up_by_any_session():
    past = PastRounds()
    past.note_withheld("ana/1")
    assert rounds_aside(past, "ana/2") == SET_ASIDE_ROUNDS
    past.note_withheld("ana/2")
    assert rounds_aside(past, "ana/3") == SET_ASIDE_ROUNDS**2
    assert past.may_add_up("bo/1")


@pytest.mark.parametrize(("unreached", "is_aside"), [(1, False), (2, True)])
def test_a_reducer_that_half_of_its_senders_do_not_reach_is_set_aside(unreached, is_aside):
    past, senders = PastRounds(), {"ana/1", "bo/1", "cy/1", "eve/1"}
    forwarded = {(by, "eve/1") for by in sorted(senders)[:unreached]} | {("gone/1", "eve/1")}
    past.set_aside_unreached(forwarded, senders)
    assert rounds_aside(past, "eve/1") == (SET_ASIDE_ROUNDS if is_aside else 0)
