"""Who is at fault where peers cannot reach each other."""

from hypothesis import given
from hypothesis import strategies as st

from dipaco.swarm.planning.blame import blame

REDUCERS = ("r1", "r2", "r3", "leader")
PAIRS = st.sets(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(REDUCERS)))


def test_of_two_peers_without_a_connection_the_reducer_is_set_aside_and_no_sum_is_lost():
    assert blame({("a", "r1")}, REDUCERS[:3]) == ({"r1"}, set())
    assert blame({("a", "r1"), ("b", "r1")}, REDUCERS[:3]) == ({"r1"}, set())


def test_a_sender_that_reaches_no_reducer_is_at_fault_and_they_are_not():
    assert blame({("a", "r1"), ("a", "r2"), ("a", "r3")}, REDUCERS[:3]) == (set(), {"a"})
    liar = {("a", "r1"), ("a", "r2"), ("a", "leader")}
    assert blame(liar | {("b", "r3")}, REDUCERS[:3]) == ({"r3"}, {"a"})


def test_a_sender_that_does_not_reach_the_leader_is_at_fault():
    assert blame({("a", "leader")}, REDUCERS[:3]) == (set(), {"a"})


@given(PAIRS)
def test_without_those_at_fault_all_others_reach_each_other(unreached):
    found = blame(unreached, REDUCERS[:3])
    assert all(by in found.senders or to in found.reducers for by, to in unreached)
    assert "leader" not in found.reducers
    assert found.reducers <= {to for _, to in unreached}
    assert found.senders <= {by for by, _ in unreached}
