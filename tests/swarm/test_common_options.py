"""Backbones of one path have the same options: one with others does not start, or never leads."""

import contextlib
import dataclasses

import pytest

from dipaco.config import MODULAR
from dipaco.swarm.errors import OptionsDiffer
from dipaco.swarm.roles import backbone_ledger
from dipaco.swarm.roles.backbone_ledger import BackbonePlace
from tests.support.backbone_rig import backbone_of, issued
from tests.support.members import process_of
from tests.support.swarm_rig import SETTINGS
from tests.support.waiting import until

OTHERS = {
    "`--block-rows` is 4 here and 2 there": {"block_rows": 4},
    "`--codec` is int8 here and none there": {"codec": "int8"},
    "`--local-steps` is 3 here and 1 there": {"local_steps": 3},
}


@pytest.fixture
def credentials(run, quick_backbones):
    return issued(run, {"first": "backbone", "second": "backbone"})


def register(run, name, path=0, settings=SETTINGS):
    place = BackbonePlace(MODULAR, path, name)
    backbone_ledger.register(run.ledger.swarms, place, settings, "127.0.0.1:1")


def test_a_backbone_with_other_options_does_not_start(run, credentials):
    with contextlib.closing(backbone_of(run, 0, "first", credentials["first"])):
        for says, other in OTHERS.items():
            settings = dataclasses.replace(SETTINGS, **other)
            with pytest.raises(OptionsDiffer, match="have crashed: first") as refused:
                backbone_of(run, 0, "second", credentials["second"], settings=settings)
            assert says in str(refused.value)
            run.ledger.members.leave("second", process_of("second"), "refused")
        assert list(run.ledger.swarms.backbones(MODULAR, 0)) == ["first"]
        register(run, "third")  # the same
        register(run, "fourth", 1, settings)  # of another path


def test_options_change_when_all_have_left_and_not_after_a_crash(run):
    other = dataclasses.replace(SETTINGS, codec="int8")
    register(run, "dead")
    with pytest.raises(OptionsDiffer, match=r"is int8 here and none there.*dead"):
        register(run, "one", settings=other)
    register(run, "one")
    for name in ("dead", "one"):
        run.ledger.swarms.drop_backbone(name)
    register(run, "one", settings=other)
    with pytest.raises(OptionsDiffer, match="is none here and int8 there"):
        register(run, "two")


def test_a_backbone_that_is_refused_says_why_in_its_own_terminal(run, credentials, monkeypatch):
    monkeypatch.setattr(backbone_ledger, "options_of", lambda settings: {})  # none differ
    said = []
    first = backbone_of(run, 0, "first", credentials["first"])
    with contextlib.closing(first):
        first._loop.call_soon_threadsafe(first._leader.start_leading)
        settings = dataclasses.replace(SETTINGS, codec="int8")
        more = {"settings": settings, "say": said.append}
        with contextlib.closing(backbone_of(run, 0, "second", credentials["second"], **more)):
            until(lambda: any("cannot follow" in one for one in said))  # and waits now
    assert "it trains another config than this group" in next(s for s in said if "cannot" in s)
