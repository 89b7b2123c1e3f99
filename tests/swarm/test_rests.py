"""Sessions that keep rounds from ending get no rows for a while: on a clock of the test's own."""

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
    rests.note_good("ana/1")
    assert not rests.rests("ana/1", 0.0)
    rests.note_good("ana/1")
    assert failed(rests, "ana/1", 1) == [0.0]


def test_a_new_session_goes_on_where_the_last_was_and_another_machine_of_the_holder_does_not():
    rests = Rests()
    rests.note_good("eve/other")
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
