"""A backbone without volunteers gives its path up, and takes it back when one comes."""

import asyncio
import threading
import time

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra `swarm` is not installed")

from dipaco.config import MODULAR
from dipaco.inner.phase_runner import PhaseWork
from dipaco.runs.opening import create_or_open
from dipaco.swarm.leading import service
from dipaco.swarm.network.credentials import DAY_SECONDS
from dipaco.swarm.planning import hands
from dipaco.swarm.roles import backbone as backbones
from dipaco.swarm.roles.session import SessionConfig, run_session
from tests.support.swarm_rig import (
    AUTHORITY,
    RATES,
    SETTINGS,
    batch_of,
    first_state,
    largest_difference,
    plain_states,
)
from tests.support.tiny_run import TOY


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path):
    opened, _ = create_or_open(tmp_path / "run", TOY)
    opened.ledger.members.join("back", host="here", pid=1, life="one", machine="one", version="0")
    yield opened
    opened.ledger.close()


def test_a_deserted_phase_ends_where_it_is_and_a_volunteer_brings_it_back(run, monkeypatch):
    monkeypatch.setattr(backbones, "STATUS_SECONDS", 0.05)
    swarms, now = run.ledger.swarms, time.time()
    credential = {}
    for name, role in (("back", "backbone"), ("ana", "volunteer")):
        credential[name] = AUTHORITY.issue(name, role, now, 1.0)
        certificate = credential[name].certificate
        swarms.issue(certificate.serial, name, role, now + DAY_SECONDS)
    backbone = backbones.Backbone(
        run.open_ledger,
        backbones.BackbonePlace(MODULAR, 0, "back"),
        SETTINGS,
        credential["back"],
        listen="tcp://127.0.0.1:0",
    )
    backbone.start()
    taken = []

    def phase(state, first, losses):
        return backbone.run_phase(
            PhaseWork(
                origin="a phase",
                state=state,
                first_step=first,
                losses=tuple(losses),
                rates=RATES[first:8],
                batch_at=batch_of,
                on_step=lambda number, loss: taken.append(number),
                should_stop=lambda: False,
                save=lambda state, losses: None,
            )
        )

    def is_manned():
        return list(swarms.backbones(MODULAR, 0, is_manned=True)) == ["back"]

    async def session(leaves):
        leaving = asyncio.Event()
        config = SessionConfig(backbone.address, True, True, None)
        ending = asyncio.ensure_future(
            run_session(config, credential["ana"], leaving, lambda sentence: None)
        )
        while not leaves():
            await asyncio.sleep(0.02)
        leaving.set()
        await ending

    def volunteer(num_steps):
        def takes_part():
            asyncio.run(session(lambda: len(taken) >= num_steps))
            monkeypatch.setattr(hands, "DESERTED_SECONDS", 0.3)
            monkeypatch.setattr(service, "WAITING_SECONDS", 0.3)

        ana = threading.Thread(target=takes_part, daemon=True)
        ana.start()
        until(is_manned)  # by a volunteer that waits
        return ana

    try:
        assert not is_manned(), "no volunteer has come yet"
        ana = volunteer(2)
        first = phase(first_state(), 0, [])
        ana.join(60)
        assert 2 <= len(first.losses) < 8, "nobody computes the rest"
        assert not is_manned()
        (status,) = swarms.statuses()
        assert not status["is_manned"]
        plain = plain_states(len(first.losses))[-1]
        assert largest_difference(first.state, plain) < 1e-5
        monkeypatch.undo()
        ana = volunteer(8)
        last = phase(jax.device_get(first.state), len(first.losses), first.losses)
        ana.join(60)
        assert np.isfinite(last.losses).all()
        assert len(last.losses) == 8
        assert largest_difference(last.state, plain_states(8)[-1]) < 1e-5
    finally:
        backbone.close(is_finished=True)
