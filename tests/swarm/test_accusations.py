"""Whose word against a sender counts."""

import pytest

from dipaco.swarm.planning.accusations import (
    ALONE_TIMES,
    NOT_FINITE,
    TOO_LARGE,
    Accusations,
)

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
        assert found.in_doubt == {"eve"}, "nor do its other sessions"
        assert found.unproved == set(SENDERS)


def test_a_holder_that_refuses_one_other_alone_is_one_of_two_that_may_be_at_fault(judge):
    """A sender may spoil the parts that go to one holder's reducers, one after the other."""
    for times in range(1, 5):
        found = judge({f"aux/{times}": {f"eve/{times}": "2 bytes", "aux/7": "2 bytes"}})
        assert found.in_doubt == {f"aux/{times}"}, "its other sessions add up"
        assert not found.at_fault
        assert (f"eve/{times}" in found.unproved) == (times <= ALONE_TIMES)
        assert "aux/7" in found.unproved, "of the same holder"
    found = judge({"aux/1": {"ana/1": "2 bytes"}})
    assert found.in_doubt == {"aux"}, "it refuses a second one"
    assert found.unproved == {"ana/1"}
    assert judge({"aux/1": {"eve/1": "2 bytes"}}).unproved == {"eve/1"}


def test_a_holder_is_not_in_doubt_for_those_that_another_refuses_too(judge):
    assert judge({"aux/1": {"eve/1": "2 bytes"}}).in_doubt == {"aux/1"}
    assert judge({"di/1": {"eve/2": "2 bytes"}}).in_doubt == {"di/1"}
    assert judge({"aux/2": {"bo/1": "2 bytes", "eve/3": "2 bytes"}}).in_doubt == {"aux/2"}


def test_what_may_be_the_models_is_held_against_nobody_in_later_rounds(judge):
    for _ in range(2 * ALONE_TIMES):
        assert judge({"aux/1": {"ana/1": NOT_FINITE, "bo/1": NOT_FINITE}}).in_doubt == {"aux"}
    found = judge({"aux/1": {"ana/1": "2 bytes"}})
    assert found.in_doubt == {"aux/1"}
    assert found.unproved == {"ana/1"}


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
