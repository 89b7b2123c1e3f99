"""A backbone without volunteers gives its path up, and takes it back when one comes."""

import asyncio
import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.swarm.leading import service
from dipaco.swarm.roles import backbone_watch
from dipaco.swarm.roles.volunteer import Volunteer
from tests.support.backbone_rig import Lent, backbone_of, issued, phase_of
from tests.support.swarm_rig import first_state, largest_difference, plain_states
from tests.support.waiting import until


def leaves(lent, patch):
    """And from then on is missed in a moment."""
    patch.setattr(backbone_watch, "DESERTED_SECONDS", 0.3)
    patch.setattr(service, "WAITING_SECONDS", 0.3)
    lent.leave()


@pytest.mark.usefixtures("quick_backbones")
def test_a_deserted_path_is_left_by_all_its_backbones_at_once(run, monkeypatch):
    """One that follows would claim it, and lead it without volunteers, in turn for ever."""
    credential = issued(run, {"back": "backbone", "second": "backbone", "ana": "volunteer"})
    both = [backbone_of(run, 0, name, credential[name]) for name in ("back", "second")]
    staffed = functools.partial(run.ledger.swarms.backbones, MODULAR, 0, is_staffed=True)
    ana = Lent(both[0].address, credential["ana"])

    def on_step(number, loss):
        if number >= 2 and all(one._staffing.is_staffed for one in both):
            leaves(ana, monkeypatch)

    try:
        until(staffed)
        phase = phase_of(both[0], 800, on_step=on_step)
        assert len(phase.losses) < 800
        assert not staffed(), "only a plain worker may claim it now"
    finally:
        for backbone in reversed(both):
            backbone.close()


@pytest.mark.usefixtures("quick_backbones")
def test_a_deserted_phase_ends_where_it_is_and_a_volunteer_brings_it_back(run, monkeypatch):
    swarms = run.ledger.swarms
    credential = issued(run, {"back": "backbone", "ana": "volunteer"})
    backbone = backbone_of(run, 0, "back", credential["back"])

    def phase(state, losses, leaves_at):
        """By a volunteer that leaves after so many steps."""
        ana = Lent(backbone.address, credential["ana"])
        until(is_staffed)  # by a volunteer that waits

        def on_step(number, loss):
            if number == leaves_at < 8:
                leaves(ana, patch)

        with monkeypatch.context() as patch:
            done = phase_of(backbone, 8, state, losses, on_step)
        return done if leaves_at < 8 else (done, ana.leave())[0]

    def is_staffed():
        return list(swarms.backbones(MODULAR, 0, is_staffed=True)) == ["back"]

    try:
        assert not is_staffed(), "no volunteer has come yet"
        first = phase(first_state(), [], leaves_at=2)
        assert 2 <= len(first.losses) < 8, "nobody computes the rest"
        assert not is_staffed()
        (status,) = swarms.statuses()
        assert not status["is_staffed"]
        assert largest_difference(first.state, plain_states(len(first.losses))[-1]) < 1e-5
        last = phase(jax.device_get(first.state), first.losses, leaves_at=8)
        assert np.isfinite(last.losses).all()
        assert len(last.losses) == 8
        assert largest_difference(last.state, plain_states(8)[-1]) < 1e-5
    finally:
        backbone.close()


async def test_a_volunteer_that_never_computes_does_not_keep_a_path_for_ever(group, monkeypatch):
    """As one that fetches the state over a link that is too slow, or whose programs hang."""

    class Stuck(Volunteer):
        async def _compute_forever(self):
            await asyncio.Event().wait()

    stuck = await group.join("stuck", kind=Stuck)
    step = asyncio.ensure_future(group.step())
    await asyncio.sleep(0.05)
    volunteers = group.leader.num_volunteers
    assert volunteers() == 1
    monkeypatch.setattr("dipaco.swarm.planning.track_records.IDLE_SECONDS", 0.1)
    await asyncio.sleep(0.3)
    assert volunteers() == 0
    monkeypatch.setattr("dipaco.swarm.planning.track_records.IDLE_SECONDS", 60.0)
    assert volunteers() == 0, "for so long also where there are no rows"
    group.leader._service._note_waiting(stuck.wire.name, True)
    await group.join("ana")
    assert volunteers() == 1
    await step
    assert volunteers() == 1


async def test_a_long_averaging_and_the_fetching_of_its_mean_leave_no_volunteer_idle(
    group, monkeypatch
):
    now = [1e6]
    monkeypatch.setattr("dipaco.swarm.roles.leader.time", SimpleNamespace(monotonic=lambda: now[0]))
    leader, members = group.leader, group.leader.group

    def num_volunteers_after(seconds):
        for _ in range(100):
            now[0] += seconds / 100
            num_volunteers = leader.num_volunteers()
        return num_volunteers

    async def hold(plan):
        assert num_volunteers_after(0.9 * 3600.0) == 1, "it cannot compute meanwhile"
        return [bytes(4 * group.compute.num_values)]

    group.add_timed("ana/1")
    group.holds(monkeypatch, hold)
    step = asyncio.ensure_future(group.step())
    await group.adopt_all("ana/1")
    members.changed.set()
    await step
    step = asyncio.ensure_future(group.step())
    while members.ledger.is_complete:
        await asyncio.sleep(0.01)
    assert num_volunteers_after(0.9 * 3600.0) == 1, "the mean takes as long as the averaging"
    assert num_volunteers_after(0.3 * 3600.0) == 0
    step.cancel()
