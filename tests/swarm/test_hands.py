"""When a swarm has its path: on a clock of the test's own."""

from dipaco.swarm.planning.hands import DESERTED_SECONDS, Hands


def test_a_path_is_the_swarms_from_the_first_volunteer_until_a_minute_after_the_last():
    hands = Hands()
    assert not hands.look(0, 5.0), "none has come yet"
    assert hands.look(2, 100.0)
    assert hands.look(0, 100.0 + DESERTED_SECONDS)
    assert not hands.look(0, 101.0 + DESERTED_SECONDS)
    assert not hands.look(0, 1e6)
    assert hands.look(1, 1e6 + 1)
    assert DESERTED_SECONDS <= 90, "with a worker's heartbeat, within two minutes"
