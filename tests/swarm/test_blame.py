"""Who is at fault where peers cannot reach each other."""

from hypothesis import given
from hypothesis import strategies as st

from dipaco.swarm.planning.blame import blame
from dipaco.swarm.planning.relays import reducers_of_no_help

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


def test_a_reducer_is_of_no_help_where_passing_parts_on_sends_more_than_adding_up():
    """With k of N other senders passed on, the leader sends 2 k parts instead of N."""
    senders = ("r1", "a", "b", "c", "d")
    assert not reducers_of_no_help({("a", "r1")}, senders)
    assert reducers_of_no_help({("a", "r1"), ("b", "r1")}, senders) == {"r1"}
    assert reducers_of_no_help({("a", "r1")}, ("r1", "a")) == {"r1"}
    assert not reducers_of_no_help({("gone", "r1"), ("too", "r1")}, senders)
