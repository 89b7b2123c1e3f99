"""Sessions that keep rounds from ending get no rows for a while: on a clock of the test's own."""

import pytest

from dipaco.swarm.planning.rests import FAILED_ROUNDS, MAX_REST_SECONDS, REST, Rests


def failed(rests, session, times, now=0.0, step_seconds=2.0):
    return [rests.note_failed(session, now, step_seconds) for _ in range(times)]


def test_a_session_that_fails_round_after_round_rests_for_longer_each_time_and_never_for_ever():
    rests = Rests()
    assert failed(rests, "eve/1", FAILED_ROUNDS - 1) == [0.0] * (FAILED_ROUNDS - 1)
    assert not rests.rests("eve/1", 0.0), "one stall is none"
    assert failed(rests, "eve/1", 2) == [REST * 2.0, REST * 4.0]
    assert rests.rests("eve/1", REST * 4.0 - 0.1)
    assert not rests.rests("eve/1", REST * 4.0)
    assert failed(rests, "eve/1", 2000)[-1] == MAX_REST_SECONDS


def test_a_round_that_goes_well_takes_one_off():
    rests = Rests()
    failed(rests, "ana/1", FAILED_ROUNDS)
    rests.note_good("ana/1", 0.0)
    assert not rests.rests("ana/1", 0.0)
    rests.note_good("ana/1", 0.0)
    assert failed(rests, "ana/1", 1) == [0.0]


def test_a_new_session_goes_on_where_the_last_was_and_another_machine_of_the_holder_does_not():
    rests = Rests()
    rests.note_good("eve/other", 0.0)
    failed(rests, "eve/1", FAILED_ROUNDS)
    assert rests.rests("eve/2", 0.0)
    assert failed(rests, "eve/2", 1) == [REST * 4.0]
    assert not rests.rests("eve/other", 0.0)
    assert not rests.rests("bo/1", 0.0)


def test_where_all_that_compute_rest_none_does():
    rests, members = Rests(), {"ana/1": 1, "eve/1": 2, "adds/1": 3}
    failed(rests, "eve/1", FAILED_ROUNDS)
    assert rests.at_work(members, {"ana/1", "eve/1"}, 0.0) == {"ana/1": 1, "adds/1": 3}
    assert rests.at_work(members, {"eve/1"}, 0.0) == members


def test_what_a_holders_old_sessions_did_is_made_good_by_its_new_one():
    rests = Rests()
    rests.note_joined("ana/1", set(), 0.0)
    failed(rests, "ana/1", 6)
    rests.note_joined("ana/2", {"bo/1"}, 0.0)
    assert rests.rests("ana/2", 1.0)
    for _ in range(6):
        rests.note_good("ana/2", 0.0)
    assert failed(rests, "ana/2", 1) == [0.0]
    rests.note_good("ana/2", 0.0)
    rests.note_joined("ana/3", {"bo/1"}, 5000.0)
    assert failed(rests, "ana/3", 1) == [0.0], "its first stall"


def test_a_session_that_joins_again_while_another_is_away_takes_over_what_that_did():
    """Of one holder: else two sessions in turn would never rest."""
    rests = Rests()
    rests.note_joined("ana/2", set(), 0.0)
    seconds = 0.0
    for _ in range(FAILED_ROUNDS):
        rests.note_joined("ana/1", {"ana/2"}, 0.0)
        seconds = rests.note_failed("ana/1", 0.0, 60.0)
        rests.note_joined("ana/2", {"bo/1"}, 0.0)
    assert seconds > 0
    assert rests.rests("ana/1", 1.0)


def test_who_holds_up_a_step_for_an_hour_rests_for_ten():
    assert failed(Rests(), "eve/1", FAILED_ROUNDS, step_seconds=3600.0)[-1] == 36000.0


@pytest.mark.parametrize("session", ["bo/1", "bo/{}"], ids=["comes back", "is a new one"])
def test_a_rest_is_no_longer_for_what_the_rest_before_made_longer(session):
    """Of a step of hours: another computes it alone, slowly, while this one rests."""
    rests, now = Rests(), 35.0
    failed(rests, session.format("first"), 1, now, step_seconds=now)
    for number in range(6):
        now += 35.0
        name = session.format(number)
        rests.note_joined(name, {"ana/1"}, now - 30.0)
        rest = rests.note_failed(name, now, step_seconds=now)
        assert rest == min(REST * 35.0 * 2.0 ** max(number, 1), MAX_REST_SECONDS)
        assert rests.rests(name, now + rest - 1.0)
        now += rest


def test_who_gets_rows_in_spite_of_its_rest_and_fails_again_rests_for_the_whole_step():
    """Where no other computes: failing ends no rest."""
    rests = Rests()
    assert failed(rests, "bo/1", FAILED_ROUNDS, step_seconds=60.0)[-1] == REST * 60.0
    assert rests.note_failed("bo/1", 100.0, 160.0) == REST * 160.0 * 2.0
    rests.note_good("bo/1", 200.0)
    held_up = 100.0  # of 150: a good round has ended its rest
    assert rests.note_failed("bo/1", 300.0, 150.0) == REST * held_up * 2.0


def test_another_machine_that_does_well_makes_nothing_good():
    rests = Rests()
    rests.note_joined("eve/good", set(), 0.0)
    for number in range(FAILED_ROUNDS):
        rests.note_joined("eve/bad", {"eve/good"}, 0.0)
        seconds = rests.note_failed("eve/bad", 0.0, 2.0)
        rests.note_good("eve/good", 0.0)
        assert (seconds > 0) == (number + 1 == FAILED_ROUNDS)
    rests.note_joined("eve/third", {"eve/good"}, 0.0)
    assert rests.rests("eve/third", 1.0)
    assert not rests.rests("eve/good", 1.0)


def test_sessions_that_do_not_come_back_are_forgotten():
    rests, now = Rests(), 0.0
    for number in range(500):
        rests.note_joined(f"ana{number}/1", {"bo/1"}, now)
        rests.note_failed(f"ana{number}/1", now, 60.0)
        rests.note_joined(f"cy{number}/1", {"bo/1"}, now)
        rests.note_good(f"cy{number}/1", now)
        now += 600.0
    assert len(rests._seen) < 20
