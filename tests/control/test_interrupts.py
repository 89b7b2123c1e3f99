"""Ctrl-C while a ledger is written, in a process that goes on: it gives its tasks back, or it is a
notebook. What is left half done is ended before the next transaction, though the interrupt came
where no `finally` of ours runs, and though its traceback keeps what was begun alive.
"""

import contextlib

import pytest

from dipaco.control.ledger import Ledger

_Manager = contextlib._GeneratorContextManager


def interrupted(ledger, monkeypatch, where, act):
    """Does `act`, and is interrupted in the machinery of `with`, where a transaction begins or
    ends. The error, whose traceback keeps what was begun alive.
    """
    enter, leave = _Manager.__enter__, _Manager.__exit__

    def is_ours(manager):
        return manager.gen.gi_code.co_qualname == f"{type(ledger._database).__name__}.transaction"

    def entered(manager):
        given = enter(manager)
        if where == "begin" and is_ours(manager):
            raise KeyboardInterrupt
        return given

    def left(manager, *error):
        if where == "end" and is_ours(manager):
            raise KeyboardInterrupt
        return leave(manager, *error)

    with monkeypatch.context() as patch:
        patch.setattr(_Manager, "__enter__", entered)
        patch.setattr(_Manager, "__exit__", left)
        try:
            act()
        except KeyboardInterrupt as error:
            return error
    raise AssertionError("nothing was interrupted")


@pytest.fixture(params=["begin", "end"])
def where(request):
    return request.param


def test_who_is_interrupted_gives_its_task_back_all_the_same(ledger, monkeypatch, where):
    claim = ledger.queue.claim("w")
    error = interrupted(ledger, monkeypatch, where, lambda: ledger.queue.renew(claim))
    ledger.queue.give_back(claim)
    assert ledger.queue.held() == []
    assert ledger.queue.claim("w").task == claim.task
    del error


def test_what_was_interrupted_is_undone_as_a_whole(ledger, monkeypatch):
    error = interrupted(ledger, monkeypatch, "end", lambda: ledger.meta.set_command("drain"))
    ledger.meta.remember("another", "value")
    assert ledger.meta.command().name == "run"
    assert ledger.meta.get("another") == "value"
    del error


def test_what_is_cleared_away_late_does_not_end_a_later_transaction(ledger, monkeypatch, where):
    error = interrupted(ledger, monkeypatch, where, lambda: ledger.meta.set_command("drain"))
    with ledger._database.transaction():
        ledger._database.change("put_meta", key="first", value="1")
        error.__traceback__ = None
        del error
        ledger._database.change("put_meta", key="second", value="2")
    assert [ledger.meta.get(key) for key in ("first", "second")] == ["1", "2"]


def test_a_look_that_was_interrupted_is_over_with_the_next_transaction(ledger):
    moment = ledger.at_one_moment()
    moment.__enter__()  # and no `__exit__`
    assert ledger.meta.remember("machine", "new") == "new"
    with ledger.at_one_moment():
        assert ledger.meta.get("machine") == "new"


def test_a_transaction_inside_another_is_a_defect_that_is_seen(ledger):
    transaction = ledger._database.transaction
    with pytest.raises(AssertionError, match="inside another"), transaction(), transaction():
        pass


def test_others_can_write_when_who_was_interrupted_has_closed_its_ledger(place, monkeypatch, where):
    first, second = Ledger(*place), Ledger(*place)
    first.start({"config": "{}"})
    error = interrupted(first, monkeypatch, where, lambda: first.meta.set_command("drain"))
    first.close()
    second.meta.set_command("pause")
    assert second.meta.command().name == "pause"
    error.__traceback__ = None
    del error
    second.meta.set_command("run")
    second.close()
