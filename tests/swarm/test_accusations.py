"""Whose word against a sender counts."""

import pytest

from dipaco.swarm.planning.accusations import NOT_FINITE, TOO_LARGE, Accusations

SENDERS = ("ana/1", "bo/1", "cy/1")


@pytest.fixture
def judge():
    accusations = Accusations("back/1")
    return lambda refused: accusations.judge(refused, SENDERS, lambda name: name.split("/")[0])


def test_what_the_leader_refuses_itself_is_certain(judge):
    found = judge({"back/1": {"ana/1": "too large"}})
    assert found == ({"ana/1": "too large"}, {"ana/1"}, set(), set())


def test_one_reducer_alone_only_leaves_a_sender_out_and_adds_up_nothing_for_a_while(judge):
    for session in ("eve/1", "eve/2", "eve/1"):
        found = judge({session: dict.fromkeys(SENDERS, "too large")})
        assert set(found.left_out) == set(SENDERS)
        assert not found.at_fault, "sessions of one holder are one reducer"
        assert found.in_doubt == {session}
        assert found.unproved == set(SENDERS)


def test_reducers_of_two_holders_are_believed_also_of_two_rounds(judge):
    assert not judge({"di/1": {"ana/1": "too large"}}).at_fault
    found = judge({"eve/1": {"ana/1": "too large", "bo/1": "too large"}})
    assert found.at_fault == {"ana/1"}
    assert found.in_doubt == {"eve/1"}
    assert found.unproved == {"bo/1"}


def test_reducers_of_two_holders_prove_it_of_a_holder_that_comes_with_another_session(judge):
    assert judge({"di/1": {"ana/0": "too large"}}).unproved == {"ana/0"}
    found = judge({"eve/1": {"ana/1": "too large"}})
    assert not found.at_fault, "each session is refused for what it did"
    assert not found.unproved


@pytest.mark.parametrize("why", [NOT_FINITE, f"the gradient is 50 {TOO_LARGE}"])
def test_a_nan_or_a_size_that_most_senders_have_is_the_models(judge, why):
    for reducer in ("back/1", "di/1", "eve/1"):
        found = judge({reducer: {"ana/1": why, "bo/1": why}})
        assert set(found.left_out) == {"ana/1", "bo/1"}
        assert not found.at_fault
        assert found.unproved == (set() if reducer == "back/1" else {"ana/1", "bo/1"})
    assert judge({"back/1": {"ana/1": why}}).at_fault == {"ana/1"}
    assert judge({"back/1": {"ana/1": "2 bytes", "bo/1": "2 bytes"}}).at_fault == {"ana/1", "bo/1"}
