"""When a swarm has its path: on a clock of the test's own."""

from dipaco.swarm.planning.track_records import (
    DESERTED_SECONDS,
    FORGET_SECONDS,
    IDLE_SECONDS,
    IdleVolunteers,
    VolunteersSeen,
    idle_limit_seconds,
)


def test_a_path_is_the_swarms_from_the_first_volunteer_until_a_minute_after_the_last():
    seen = VolunteersSeen()
    assert not seen.look(0, 5.0), "none has come yet"
    assert seen.look(2, 100.0)
    assert seen.look(0, 100.0 + DESERTED_SECONDS)
    assert not seen.look(0, 101.0 + DESERTED_SECONDS)
    assert not seen.look(0, 1e6)
    assert seen.look(1, 1e6 + 1)
    assert DESERTED_SECONDS <= 90, "with a worker's heartbeat, within two minutes"


def seen(idle, now, has_rows=True, **useful):
    idle.look(useful, has_rows, now, dict.fromkeys(useful, idle_limit_seconds(0.0)))
    return set(idle.sessions)


def test_a_volunteer_of_which_no_block_comes_counts_for_half_an_hour_and_then_not_until_one_does():
    idle, never = IdleVolunteers(), float("-inf")
    assert not seen(idle, 1e6, ana=1e6 - 9, bo=never)
    assert not seen(idle, 1e6 + IDLE_SECONDS, ana=1e6 + 5, bo=never)
    assert seen(idle, 1e6 + IDLE_SECONDS + 1, ana=1e6 + 5, bo=never) == {"bo"}
    assert seen(idle, 1e6 + IDLE_SECONDS + 2) == {"bo"}, "nor where it is gone, and waits"
    assert not seen(idle, 1e6 + IDLE_SECONDS + 9, ana=1e6 + 5, bo=1e6 + IDLE_SECONDS + 8)


def test_time_without_rows_or_away_does_not_count():
    idle, never = IdleVolunteers(), float("-inf")
    seen(idle, 0.0, bo=never)
    assert not seen(idle, 10 * IDLE_SECONDS, has_rows=False, bo=never)
    assert not seen(idle, 20 * IDLE_SECONDS)
    assert not seen(idle, 20 * IDLE_SECONDS + 5, bo=never)


def test_one_that_was_found_idle_counts_again_after_a_while_and_then_after_twice_as_long():
    """The path was left to plain workers: it could not compute a block if it would."""
    idle, never, now = IdleVolunteers(), float("-inf"), 0.0
    for times in (1, 2, 4):
        while not seen(idle, now, ana=never):
            now += 60.0
        assert seen(idle, now + times * IDLE_SECONDS - 60.0) == {"ana"}
        assert not seen(idle, now + times * IDLE_SECONDS + 60.0)
        now += times * IDLE_SECONDS + 120.0
    seen(idle, now, ana=now)
    assert seen(idle, now + 60.0, ana=now) == set()
    now += 60.0
    while not seen(idle, now, ana=never):
        now += 60.0
    assert not seen(idle, now + IDLE_SECONDS + 60.0), "a block of it has come since"


def test_a_session_that_does_not_come_back_is_forgotten():
    idle = IdleVolunteers()
    for number in range(100):
        seen(idle, 1000.0 * number, **{f"ana{number}": float("-inf")})
    seen(idle, 1e5 + FORGET_SECONDS)
    seen(idle, 2e5 + FORGET_SECONDS)
    assert not idle._seen


def test_a_slow_machine_has_the_time_that_a_block_takes_it():
    assert idle_limit_seconds(10.0) == IDLE_SECONDS
    assert idle_limit_seconds(9000.0) == 9000.0
