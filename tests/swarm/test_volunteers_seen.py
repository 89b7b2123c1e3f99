"""When a volunteer counts, and who is left alone after a fault: on a clock of the test's own."""

from dipaco.swarm.planning.track_records import IDLE_SECONDS, IdleVolunteers, LeftAlone


def seen(idle, now, has_rows=True, **useful):
    return idle.look(useful, has_rows, now, dict.fromkeys(useful, 0.0))


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


def test_a_slow_machine_has_the_time_that_a_block_takes_it():
    idle, slow = IdleVolunteers(), {"ana": float("-inf")}
    for now in (0.0, 9000.0, 9001.0):
        found = idle.look(slow, True, now, {"ana": 9000.0})
    assert found == {"ana"}
    assert not idle.look(slow, True, 9001.0 + IDLE_SECONDS, {"ana": 9000.0})


def test_one_is_left_alone_for_longer_after_each_fault_and_forgotten_in_the_end():
    left, now = LeftAlone(10.0, 60.0), 0.0
    for seconds in (10.0, 20.0, 40.0, 60.0, 60.0):
        left.note_fault("ana", now)
        assert left.now(now + seconds - 1.0) == {"ana"}
        assert not left.now(now + seconds)
        now += seconds
    left.forgive("ana")
    left.note_fault("ana", now)
    assert not left.now(now + 10.0), "it was reached since"
    for number in range(100):
        left.note_fault(f"bo{number}", now + 10.0 * number)
    assert len(left._until) < 10
