"""Backbones of one path have the same options: one with others does not start, or never leads."""

import contextlib
import dataclasses

import pytest

from dipaco.config import MODULAR
from dipaco.swarm.errors import OptionsDiffer
from dipaco.swarm.roles import backbone_ledger
from dipaco.swarm.roles.backbone_ledger import BackbonePlace
from tests.support.backbone_rig import backbone_of, issued, until
from tests.support.swarm_rig import SETTINGS

OTHERS = {
    "`--block-rows` is 4 here and 2 there": {"block_rows": 4},
    "`--codec` is int8 here and none there": {"codec": "int8"},
    "`--delayed-updates` is on here and off there": {"delayed_updates": True},
}


@pytest.fixture
def credentials(run, quick_backbones):
    return issued(run, {"first": "backbone", "second": "backbone"})


def check(run):
    place = BackbonePlace(MODULAR, 0, "one")
    backbone_ledger.BackboneLedger(run.ledger, place, SETTINGS, "").check_options()


def test_a_backbone_with_other_options_does_not_start(run, credentials):
    with contextlib.closing(_Closing(backbone_of(run, 0, "first", credentials["first"]))):
        for says, other in OTHERS.items():
            settings = dataclasses.replace(SETTINGS, **other)
            with pytest.raises(OptionsDiffer, match="have crashed: first") as refused:
                backbone_of(run, 0, "second", credentials["second"], settings=settings)
            assert says in str(refused.value)
        assert list(run.ledger.swarms.backbones(MODULAR, 0)) == ["first"]
        backbone_ledger.agree(run.ledger.swarms, MODULAR, 0, SETTINGS)  # the same
        backbone_ledger.agree(run.ledger.swarms, MODULAR, 1, settings)  # of another path


def test_options_change_when_all_have_left_and_not_after_a_crash(run):
    swarms = run.ledger.swarms
    other = dataclasses.replace(SETTINGS, codec="int8")
    backbone_ledger.agree(swarms, MODULAR, 0, SETTINGS)
    swarms.put_backbone("dead", MODULAR, 0, "127.0.0.1:1", is_staffed=False)
    with pytest.raises(OptionsDiffer, match="dead"):
        backbone_ledger.agree(swarms, MODULAR, 0, other)
    check(run)
    swarms.drop_backbone("dead")
    backbone_ledger.agree(swarms, MODULAR, 0, other)
    with pytest.raises(OptionsDiffer, match="is none here and int8 there"):
        check(run)


def test_of_two_that_start_at_once_one_says_so_and_is_given_no_path(run, credentials, monkeypatch):
    said = []
    first = backbone_of(run, 0, "first", credentials["first"], say=said.append)
    with contextlib.closing(_Closing(first)):
        monkeypatch.setattr(type(first._leader), "num_volunteers", lambda self: 1)
        until(lambda: run.ledger.swarms.backbones(MODULAR, 0, is_staffed=True))
        run.ledger.swarms.drop_backbone("first")  # as if it was not registered yet
        other = dataclasses.replace(SETTINGS, block_rows=4)
        backbone_ledger.agree(run.ledger.swarms, MODULAR, 0, other)
        until(lambda: not first._staffing.is_staffed)
    (sentence,) = [one for one in said if "`--block-rows` is 2 here and 4 there" in one]
    assert "does not lead" in sentence


def test_a_backbone_that_is_refused_says_why_in_its_own_terminal(run, credentials, monkeypatch):
    monkeypatch.setattr(
        backbone_ledger, "options_of", lambda settings: {}
    )  # not found at the start
    said = []
    first = backbone_of(run, 0, "first", credentials["first"])
    with contextlib.closing(_Closing(first)):
        first._loop.call_soon_threadsafe(first._leader.start_leading)
        settings = dataclasses.replace(SETTINGS, codec="int8")
        more = {"settings": settings, "say": said.append}
        with contextlib.closing(
            _Closing(backbone_of(run, 0, "second", credentials["second"], **more))
        ):
            until(lambda: any("cannot follow" in one for one in said))  # and waits now
    assert "it trains another config than this group" in next(s for s in said if "cannot" in s)


class _Closing:
    def __init__(self, backbone):
        self._backbone = backbone

    def close(self):
        self._backbone.close()
