"""A group in one process: a leader and volunteers with tiny models, over TCP on this machine."""

import asyncio
import contextlib
import functools
import socket
import time

import jax
import msgspec
import numpy as np
import pytest

from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.state import fresh
from dipaco.inner.step import gradient_function, make_step
from dipaco.model.config import ModelConfig
from dipaco.model.lm import training_loss
from dipaco.model.spec import initialise
from dipaco.swarm.network.credentials import Authority
from dipaco.swarm.network.limits import LinkMeter
from dipaco.swarm.network.messages import (
    JoinRequest,
    RoundPlan,
    Sender,
    Slice,
    StatePosition,
)
from dipaco.swarm.network.streams import STREAM_BYTES, Streams
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.roles.leader import Leader
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.compute import Compute, GroupSettings
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_clock import MovingLoop

LENGTH, BATCH, STEPS = 24, 16, 6
MODEL = ModelConfig(vocab_size=64, d_model=16, num_layers=1, num_heads=2, d_ff=24, max_length=24)
INNER = InnerSettings(batch_size=BATCH, learning_rate=3e-3, warmup_steps=1, steps=STEPS)
SETTINGS = GroupSettings(model=MODEL, inner=INNER, length=LENGTH, block_rows=2)
AUTHORITY = Authority(bytes(range(32)))
HERE = "127.0.0.1:0"
RATES = learning_rates(INNER, 1000, 0, 1000)


def batch_of(step):
    """The rows of a step."""
    rng = np.random.default_rng(step)
    return {
        "tokens": rng.integers(0, 64, (BATCH, LENGTH), dtype=np.int32),
        "segments": np.ones((BATCH, LENGTH), np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1)),
    }


@functools.cache
def first_state():
    parts = jax.device_get(initialise(MODEL, jax.random.key(0)))
    return jax.device_get(fresh(parts, make_optimizer(INNER)))


def loss_of(parts, batch):
    return training_loss(MODEL, parts, batch["tokens"], batch["segments"], batch["positions"])


@functools.cache
def plain_step():
    return make_step(loss_of, INNER)


def plain_states(count):
    """The states after 0, 1, ... steps of plain large-batch AdamW in one process."""
    step, state = plain_step(), jax.device_put(first_state())
    states = [jax.device_get(state)]
    for number in range(count):
        state, _ = step(state, batch_of(number), RATES[number])
        states.append(jax.device_get(state))
    return states


@functools.cache
def mean_gradient():
    return jax.jit(gradient_function(loss_of, INNER))


def largest_difference(a, b):
    leaves = zip(jax.tree.leaves(a.parts), jax.tree.leaves(b.parts), strict=True)
    return max(float(np.max(np.abs(x - y))) for x, y in leaves)


COMPUTE = Compute(SETTINGS)


def issue(name, role="volunteer", authority=AUTHORITY, days=1.0, now=None):
    return authority.issue(name, role, time.time() if now is None else now, days)


class OnHost(Streams):
    """Streams of one of the hosts of `tools/support/hosts.py`, in this process."""

    @classmethod
    async def start_at(cls, host, credential, handler):
        with host.entered():
            self = await cls.start(credential, handler, listen=f"{host.address}:0")
        self._host = host
        return self

    async def _connected(self, where):
        with self._host.entered():
            connection = socket.socket()
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, where)
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection, limit=STREAM_BYTES)


async def wire_of(credential, *, listens=True, meter=None, host=None, listen=HERE, name=None):
    """A wire with a transport, on this machine or a host."""
    wire = Wire(credential, 64 << 20, meter)
    wire.name = name or wire.name
    handler = wire.serve if listens else None
    if host is None:
        wire.transport = await Streams.start(credential, handler, listen=listen)
    else:
        wire.transport = await OnHost.start_at(host, credential, handler)
    return wire


def asks_to_join(address="127.0.0.1:1", computes=True, **more):
    return JoinRequest(version="", address=address, computes=computes, **more)


def round_plan(number, senders, slices, step=3, **more):
    """Of senders or names, each of which has a block, and of (start, stop, reducer, address)."""
    return RoundPlan(
        number=number,
        step=step,
        senders=tuple(
            Sender(name=name, blocks=(0,), targets=1.0) if isinstance(name, str) else name
            for name in senders
        ),
        slices=tuple(
            Slice(start=start, stop=stop, reducer=reducer, address=address)
            for start, stop, reducer, address in slices
        ),
        **({"codec": "none", "within_seconds": 9.0, "commitments": ()} | more),
    )


async def admitted(body, request):
    """Any request may bring a payload: see `Wire.register`."""


class Group:
    """A leader, and the peers that join."""

    def __init__(self, settings=SETTINGS, hosts=None):
        self.settings, self.hosts = settings, hosts or {}
        self.compute = COMPUTE if settings is SETTINGS else Compute(settings)
        self.said, self.refused, self.states, self.outcomes = [], [], [], []
        self.evidence = []  # (session, evidence) of those that were found to lie
        self.volunteers = {}
        self.ends = STEPS  # a phase's last local steps may be fewer

    async def __aenter__(self):
        self._lead_with(await wire_of(issue("back", "backbone"), host=self.hosts.get("back")))
        self.holder.set_state(first_state(), StatePosition("test", 0, "root"), [])
        self.leader.begin_phase((self.wire.address,))
        self.states.append(jax.device_get(self.holder.state))
        return self

    async def __aexit__(self, *_):
        self.leader.end()
        for volunteer, task in self.volunteers.values():
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
            await volunteer.wire.transport.close()
        await self.wire.transport.close()

    async def new_leader(self):
        """The leader's process dies; another backbone, which has taken the same steps, leads."""
        old, position, losses = self.wire, self.holder.position, list(self.holder.losses)
        wire = await wire_of(issue("second", "backbone"))
        self.leader.update_backbones((old.address, wire.address), ())
        await asyncio.sleep(0.2)  # peers that poll have it
        await old.transport.close()
        (follower, _), *_ = self.volunteers.values()
        self._lead_with(wire)
        self.holder.set_state(self.states[-1], position, losses)
        self.leader.begin_phase((wire.address,), last_senders=follower.last_senders)

    def _lead_with(self, wire):
        self.wire, self.holder = wire, StateHolder(wire, self.compute)
        refused = lambda sender, reason: self.refused.append((sender, reason))  # noqa: E731
        wire.on_refused = refused

        def banned(certificate, session, reason, evidence):
            if evidence is not None:
                self.evidence.append((session, evidence))
            return ()

        self.leader = Leader(
            wire, self.holder, say=self.said.append, on_refused=refused, on_banned=banned
        )

    async def join(
        self,
        name,
        *,
        kind=Volunteer,
        slow=0.0,
        listens=True,
        most=None,
        credential=None,
        bytes_per_second=None,
        **more,
    ):
        """One more volunteer, which needs `slow` seconds more for each block. Its link is as fast
        as `bytes_per_second` by its own word.
        """
        meter, host = LinkMeter(most), self.hosts.get(name)
        if bytes_per_second is not None:
            for note in (meter.sent, meter.received):
                note(10**9, 10**9 / bytes_per_second)
        wire = await wire_of(credential or issue(name), listens=listens, meter=meter, host=host)
        holder = StateHolder(wire, Slow(self.compute, slow))
        volunteer = kind(wire, (self.wire.address,), holder, **more)
        try:
            await volunteer.join()
        except BaseException:
            await wire.transport.close()
            raise
        self.volunteers[name] = volunteer, asyncio.ensure_future(volunteer.run())
        return volunteer

    async def join_all(self, **slow):
        """Volunteers of these names, and the seconds that each needs more for a block."""
        return [await self.join(name, slow=seconds) for name, seconds in slow.items()]

    async def kill(self, name):
        """As SIGKILL: all that it has is gone at once."""
        volunteer, task = self.volunteers.pop(name)
        task.cancel()
        await volunteer.wire.transport.close()
        with contextlib.suppress(BaseException):
            await task

    def add_timed(self, name):
        """A member without a process, which was timed."""
        members = self.leader.group
        members.add_member(name, issue(name.partition("/")[0]).certificate, asks_to_join(None))
        members.members[name].time_block(1.0)

    async def adopt_all(self, name):
        """Waits for the rows of the step that has begun, and takes all as done by a member."""
        await asyncio.sleep(0)
        while not self.leader.group.ledger.adopt(name, set(range(8))):
            await asyncio.sleep(0.01)

    def holds(self, monkeypatch, hold):
        """Rounds end as `hold` does; nothing is checked, and no member falls silent."""

        async def settle(plan, rows):
            return {}

        monkeypatch.setattr(self.leader._rounds, "hold", hold)
        monkeypatch.setattr(self.leader._checks, "settle", settle)
        monkeypatch.setattr(self.leader.group, "check_members", lambda: None)

    async def step(self):
        number, steps = self.holder.step, self.settings.local_steps
        batch = batch_of(number)
        if steps > 1:
            steps = min(steps, self.ends - number)
            batch = self.settings.joined([batch_of(number + at) for at in range(steps)])
        try:
            async with asyncio.timeout(180):
                outcome = await self.leader.take_step(
                    batch, float(RATES[number]), lambda: False, steps
                )
        except TimeoutError:
            members = {
                name: {**vars(one), "silent_seconds": one.silent_seconds()}
                for name, one in self.leader.group.members.items()
            }
            for task in asyncio.all_tasks():
                task.print_stack(limit=3)
            pytest.fail(f"no step: {self.said}, {members}, {vars(self.leader.group.ledger)}")
        self.outcomes.append(outcome)
        self.states.append(jax.device_get(self.holder.state))
        return outcome

    async def steps(self, count):
        return [await self.step() for _ in range(count)][-1]

    async def step_until(self, condition, most=1000):
        """Steps until that holds, which it must before the phase has so many steps."""
        while not condition():
            assert len(self.outcomes) < most, self.said
            await self.step()


class Slow:
    """A slower machine."""

    def __init__(self, compute, seconds):
        self._compute, self._seconds = compute, seconds
        loop = asyncio.get_running_loop()
        self._sleep = loop.sleep_in_thread if isinstance(loop, MovingLoop) else time.sleep

    def __getattr__(self, name):
        return getattr(self._compute, name)

    def gradient(self, *of_rows):
        self._sleep(self._seconds)
        return self._compute.gradient(*of_rows)


class OnlyAddsUp(Volunteer):
    """One that computes no rows."""

    async def _compute_forever(self):
        await asyncio.Event().wait()


def sending(change, first_step=0):
    """A volunteer that sends another gradient than it has computed, from a step on."""

    class SendsAnother(Volunteer):
        def gradient_sum(self, plan):
            vector = super().gradient_sum(plan)
            return vector if vector is None or plan.step < first_step else change(np.array(vector))

    return SendsAnother


def saying(**fields):
    """One that computes what it should, and says something else of it."""

    class SaysAnother(Volunteer):
        async def _request_work(self, work):
            done = tuple(msgspec.structs.replace(one, **fields) for one in work.done)
            return await super()._request_work(msgspec.structs.replace(work, done=done))

    return SaysAnother


def assert_replayed(group):
    """Every step of the group is the plain one, to 1e-5, and each row was in it once."""
    plain = plain_states(len(group.outcomes))
    for ours, theirs in zip(group.states, plain, strict=True):
        assert largest_difference(ours, theirs) < 1e-5
    for outcome in group.outcomes:
        blocks = sorted(block for blocks in outcome.record.blocks.values() for block in blocks)
        assert blocks == list(range(group.settings.num_blocks))
