"""Sessions that keep rounds from ending get no rows for a while: on a clock of the test's own."""

import pytest

from dipaco.swarm.planning.track_records import (
    FAILED_ROUNDS,
    MAX_SUSPENSION_SECONDS,
    SUSPENSION_FACTOR,
    Suspensions,
)


def failed(suspensions, session, times, now=0.0, step_seconds=2.0):
    return [suspensions.note_failed(session, now, step_seconds) for _ in range(times)]


def test_a_session_that_fails_each_round_is_suspended_for_longer_each_time_and_never_for_ever():
    suspensions = Suspensions()
    assert failed(suspensions, "eve/1", FAILED_ROUNDS - 1) == [0.0] * (FAILED_ROUNDS - 1)
    assert not suspensions.is_suspended("eve/1", 0.0), "one stall is none"
    assert failed(suspensions, "eve/1", 2) == [SUSPENSION_FACTOR * 2.0, SUSPENSION_FACTOR * 4.0]
    assert suspensions.is_suspended("eve/1", SUSPENSION_FACTOR * 4.0 - 0.1)
    assert not suspensions.is_suspended("eve/1", SUSPENSION_FACTOR * 4.0)
    assert failed(suspensions, "eve/1", 2000)[-1] == MAX_SUSPENSION_SECONDS


def test_a_round_that_goes_well_takes_one_off():
    suspensions = Suspensions()
    failed(suspensions, "ana/1", FAILED_ROUNDS)
    suspensions.note_good("ana/1", 0.0)
    assert not suspensions.is_suspended("ana/1", 0.0)
    suspensions.note_good("ana/1", 0.0)
    assert failed(suspensions, "ana/1", 1) == [0.0]


def test_a_new_session_goes_on_where_the_last_was_and_another_machine_of_the_holder_does_not():
    suspensions = Suspensions()
    suspensions.note_good("eve/other", 0.0)
    failed(suspensions, "eve/1", FAILED_ROUNDS)
    suspensions.note_joined("eve/2", {"eve/other"}, 0.0)
    assert suspensions.is_suspended("eve/2", 0.0)
    assert failed(suspensions, "eve/2", 1) == [SUSPENSION_FACTOR * 4.0]
    assert not suspensions.is_suspended("eve/other", 0.0)
    assert not suspensions.is_suspended("bo/1", 0.0)


def test_a_session_that_joins_again_while_another_is_away_takes_over_what_that_did():
    """Of one holder: else two sessions in turn would never be suspended."""
    suspensions = Suspensions()
    suspensions.note_joined("ana/2", set(), 0.0)
    seconds = 0.0
    for _ in range(FAILED_ROUNDS):
        suspensions.note_joined("ana/1", {"ana/2"}, 0.0)
        seconds = suspensions.note_failed("ana/1", 0.0, 60.0)
        suspensions.note_joined("ana/2", {"bo/1"}, 0.0)
    assert seconds > 0
    suspensions.note_joined("ana/1", {"ana/2"}, 0.0)
    assert suspensions.is_suspended("ana/1", 1.0)


def test_who_holds_up_a_step_for_an_hour_is_suspended_for_ten():
    assert failed(Suspensions(), "eve/1", FAILED_ROUNDS, step_seconds=3600.0)[-1] == 36000.0


@pytest.mark.parametrize("session", ["bo/1", "bo/{}"], ids=["comes back", "is a new one"])
def test_a_suspension_is_no_longer_for_delay_that_the_last_one_added(session):
    """Of a step of hours: another computes it alone, slowly, while this one suspensions."""
    suspensions, now = Suspensions(), 35.0
    failed(suspensions, session.format("first"), 1, now, step_seconds=now)
    for number in range(6):
        now += 35.0
        name = session.format(number)
        suspensions.note_joined(name, {"ana/1"}, now - 30.0)
        seconds = suspensions.note_failed(name, now, step_seconds=now)
        assert seconds == min(
            SUSPENSION_FACTOR * 35.0 * 2.0 ** max(number, 1), MAX_SUSPENSION_SECONDS
        )
        assert suspensions.is_suspended(name, now + seconds - 1.0)
        now += seconds


def test_a_suspended_session_that_gets_rows_and_fails_again_is_suspended_for_the_whole_step():
    """Where no other computes: failing ends no suspension."""
    suspensions = Suspensions()
    assert (
        failed(suspensions, "bo/1", FAILED_ROUNDS, step_seconds=60.0)[-1]
        == SUSPENSION_FACTOR * 60.0
    )
    assert suspensions.note_failed("bo/1", 100.0, 160.0) == SUSPENSION_FACTOR * 160.0 * 2.0
    suspensions.note_good("bo/1", 200.0)
    held_up = 100.0  # of 150: a good round has ended its suspension
    assert suspensions.note_failed("bo/1", 300.0, 150.0) == SUSPENSION_FACTOR * held_up * 2.0


def test_another_machine_that_does_well_makes_nothing_good():
    suspensions = Suspensions()
    suspensions.note_joined("eve/good", set(), 0.0)
    for number in range(FAILED_ROUNDS):
        suspensions.note_joined("eve/bad", {"eve/good"}, 0.0)
        seconds = suspensions.note_failed("eve/bad", 0.0, 2.0)
        suspensions.note_good("eve/good", 0.0)
        assert (seconds > 0) == (number + 1 == FAILED_ROUNDS)
    suspensions.note_joined("eve/third", {"eve/good"}, 0.0)
    assert suspensions.is_suspended("eve/third", 1.0)
    assert not suspensions.is_suspended("eve/good", 1.0)


def test_sessions_that_do_not_come_back_are_forgotten():
    suspensions, now = Suspensions(), 0.0
    for number in range(500):
        suspensions.note_joined(f"ana{number}/1", {"bo/1"}, now)
        suspensions.note_failed(f"ana{number}/1", now, 60.0)
        suspensions.note_joined(f"cy{number}/1", {"bo/1"}, now)
        suspensions.note_good(f"cy{number}/1", now)
        now += 600.0
    assert len(suspensions._seen) < 20
