"""One address for the whole run: a volunteer serves the path that needs it most, and moves."""

import asyncio
import socket

import jax
import pytest

from dipaco.cli.swarm_watch import lines_of
from dipaco.config import MODULAR
from dipaco.control.claims.queue import add_tasks
from dipaco.control.members.leaderboard import VolunteerRecord
from dipaco.control.planning.tasks import Task
from dipaco.swarm.errors import NoSuchSwarm
from dipaco.swarm.network.messages import RunOverview
from dipaco.swarm.planning import paths
from dipaco.swarm.roles import backbone as backbones
from dipaco.swarm.roles import session
from dipaco.swarm.roles.session import (
    SessionConfig,
    ask_about_run,
    run_session,
    wire_to,
)
from tests.support.backbone_rig import Lent, backbone_of, issued, phase_of
from tests.support.backbone_stub import stub_backbone
from tests.support.swarm_rig import SETTINGS, issue, largest_difference, plain_states
from tests.support.waiting import until

STEPS = 4


@pytest.fixture
def credentials(run):
    """Name -> credential: of the backbones of paths 0 and 1, and of a volunteer."""
    roles = {"backbone-0": "backbone", "backbone-1": "backbone", "ana": "volunteer"}
    return issued(run, roles)


@pytest.fixture
def both(run, credentials, quick_backbones, monkeypatch):
    """The backbones of paths 0 and 1."""
    monkeypatch.setattr(backbones, "OVERVIEW_SECONDS", 0.05)
    monkeypatch.setattr(paths, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(session, "TELL_SECONDS", 0.05)
    made = [
        backbone_of(run, path, name, credentials[name], num_steps=20)
        for path, name in enumerate(("backbone-0", "backbone-1"))
    ]
    yield made
    for backbone in made:
        backbone.close()


def is_due(run, path):
    with run.ledger._database.transaction():
        add_tasks(run.ledger._database, [Task("train", MODULAR, str(path), 0)])


def is_done(run, path):
    statement = "UPDATE tasks SET state = 'done' WHERE kind = 'train' AND subject = ?"
    with run.ledger._database.transaction():
        run.ledger._database._connection.execute(statement, (str(path),))


def asked(credential, address):
    async def ask():
        wire = await wire_to(address, credential)
        try:
            return await ask_about_run(wire, address)
        finally:
            await wire.transport.close()

    return asyncio.run(ask())


def test_a_volunteer_is_sent_to_the_path_that_is_due_and_moves_to_the_next(run, both, credentials):
    swarms, ana = run.ledger.swarms, credentials["ana"]
    is_due(run, 1)
    until(lambda: [one.samples_left > 0 for one in asked(ana, both[0].address).paths][1:] == [True])
    lent = Lent(both[0].address, ana)
    said = lent.said
    staffed = lambda path: swarms.backbones(MODULAR, path, is_staffed=True)  # noqa: E731
    until(lambda: staffed(1))
    assert said[0].startswith("path 1 needs volunteers most")
    first = phase_of(both[1], STEPS)
    is_done(run, 1)
    is_due(run, 0)
    until(lambda: staffed(0))
    assert any("needs volunteers more than path 1" in sentence for sentence in said), said
    second = phase_of(both[0], STEPS)
    assert "Thank you" in lent.leave()[-1]
    for done in (first, second):
        assert len(done.losses) == STEPS
        assert largest_difference(jax.device_get(done.state), plain_states(STEPS)[-1]) < 1e-5
    until(lambda: asked(ana, both[1].address).helpers)
    overview = asked(ana, both[1].address)
    (helper,) = overview.helpers
    assert (helper.name, helper.place, helper.share) == ("ana", 1, 1.0)
    samples = 2 * STEPS * SETTINGS.inner.batch_size
    assert helper.samples <= samples
    own = [sentence for sentence in said if "this machine" in sentence]
    assert any("path 1: step" in sentence for sentence in own), said
    assert any("samples by you in all sessions (100.0%), place 1 of 1" in one for one in own)
    text = "\n".join(lines_of(overview, "ana"))
    assert "path 0: step 4 of 20" in text
    assert f"{helper.samples:,}" in text
    assert "you" in text


def test_watch_says_what_the_machines_of_each_volunteer_do_now():
    ana = VolunteerRecord(1, "ana", 90, 0.9, 9, (0,), True, "averages, computes", 12.34)
    bo = VolunteerRecord(2, "bo", 10, 0.1, 1, (0,), False, "", 0.0)
    first, second = lines_of(RunOverview(helpers=(ana, bo)), "bo")[1:]
    assert first.endswith("90.0%  12.3 samples/s, averages, computes")
    assert second.endswith("10.0%  not here, you")


def test_a_volunteer_says_that_the_run_is_over_and_not_so_when_it_leaves(run, both, credentials):
    is_due(run, 0)
    lent = Lent(both[0].address, credentials["ana"], path=0)
    until(lambda: run.ledger.swarms.backbones(MODULAR, 0, is_staffed=True))
    phase_of(both[0], STEPS)
    assert "the run is over" not in lent.said
    both[0]._loop.call_soon_threadsafe(both[0]._leader.end)
    assert lent.ended()[-2] == "the run is over"


def test_a_path_can_be_chosen_and_one_without_a_backbone_is_named(run, both, credentials):
    is_due(run, 0)
    address, ana = both[0].address, credentials["ana"]
    with pytest.raises(NoSuchSwarm, match=r"path 3 .*these paths: 0, 1"):
        Lent(address, ana, path=3).ended()
    lent = Lent(address, ana, path=1)
    until(lambda: run.ledger.swarms.backbones(MODULAR, 1, is_staffed=True))
    assert lent.leave()[0] == f"path 1 is led at {both[1].address}"


async def test_the_path_that_was_chosen_is_asked_for_again_where_the_backbone_is_up_later():
    asked, said = [], []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = SessionConfig(f"127.0.0.1:{port}", False, None, path=3)
    lending = asyncio.ensure_future(run_session(config, issue("ana"), asyncio.Event(), said.append))
    await asyncio.sleep(0.3)
    async with stub_backbone(asked, (), port):
        with pytest.raises(NoSuchSwarm, match=r"path 3 .*these paths: 0"):
            await lending
    assert asked == ["run"]
