"""Backbones of a run in this process, and phases that they lead."""

import asyncio
import contextlib
import threading
import time

from dipaco.config import MODULAR
from dipaco.inner.phase_runner import PhaseWork
from dipaco.inner.state import Handover
from dipaco.swarm.network.credentials import DAY_SECONDS
from dipaco.swarm.roles.backbone import Backbone, BackbonePlace
from dipaco.swarm.roles.session import SessionConfig, run_session
from tests.support.members import join
from tests.support.swarm_rig import AUTHORITY, RATES, SETTINGS, batch_of, first_state


def issued(run, roles):
    """Name -> a credential in that role, which the run accepts."""
    made, now = {}, time.time()
    for name, role in roles.items():
        made[name] = AUTHORITY.issue(name, role, now, 1.0)
        run.ledger.swarms.issue(made[name].certificate.serial, name, role, now + DAY_SECONDS)
    return made


def backbone_of(run, path, name, credential, *, settings=None, listen="127.0.0.1:0", **more):
    """The backbone of a path, started."""
    join(run.ledger, name)
    backbone = Backbone(
        run.open_ledger,
        BackbonePlace(MODULAR, path, name),
        settings or SETTINGS,
        credential,
        listen=listen,
        **more,
    )
    backbone.start()
    return backbone


def phase_of(backbone, steps, state=None, losses=(), on_step=lambda number, loss: None):
    """A phase of its path, to step `steps`, by the volunteers that serve it; it goes on from where
    `losses` end.
    """
    return backbone.run_phase(
        PhaseWork(
            origin=f"a phase of {backbone.address}",
            state=Handover(first_state() if state is None else state),
            first_step=len(losses),
            losses=tuple(losses),
            rates=RATES[len(losses) : steps],
            batches=iter(()),
            batch_at=batch_of,
            on_step=on_step,
            should_stop=lambda: False,
            save=lambda state, losses: None,
        )
    )


class Lent:
    """A lent machine, in a thread: what its terminal says, and what ended it."""

    def __init__(self, address, credential, path=None, listens=True):
        self.said, self.error = [], None
        self._has_begun, self._leave = threading.Event(), lambda: None
        config = SessionConfig(address, listens, None, path)
        self._thread = threading.Thread(target=self._lend, args=(config, credential), daemon=True)
        self._thread.start()

    def _lend(self, config, credential):
        async def session():
            loop, leaving = asyncio.get_running_loop(), asyncio.Event()
            self._leave = lambda: loop.call_soon_threadsafe(leaving.set)
            self._has_begun.set()
            await run_session(config, credential, leaving, self.said.append)

        try:
            asyncio.run(session())
        except Exception as error:
            self.error = error

    def leave(self):
        """Returns what it has said."""
        self._has_begun.wait()
        with contextlib.suppress(RuntimeError):  # it has left
            self._leave()
        return self.ended()

    def ended(self):
        """Waits for its end. Returns what it has said."""
        self._thread.join(60)
        assert not self._thread.is_alive(), self.said
        if self.error is not None:
            raise self.error
        return self.said
