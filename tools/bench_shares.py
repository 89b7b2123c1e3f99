"""How long a round of averaging takes on throttled links, by how the gradient is shared out.

    python tools/bench_shares.py
    python tools/bench_shares.py --links 100 100 10 10 10 10 --clients 3 --megabytes 1

Peers of one process send real messages, signed, over TCP of this machine, each no faster than its
link (Mbit/s, in each direction). `bound` is what the model of DeDLOC section 3.2 says: the slowest
link, nothing else. The ring is not run, since clients cannot take part in one: its row is the
bound, 2 (N - 1) / N vectors over the slowest link. The time of the closed form is of 64 peers.
"""

import argparse
import asyncio
import json
import time

import numpy as np

from dipaco.errors import DipacoError
from dipaco.swarm.network.credentials import Authority, Signer, Verifier
from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import (
    RoundPlan,
    Sender,
    Slice,
)
from dipaco.swarm.network.transport import Tcp
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.planning.shares import Link, cut, shares, shares_of_links
from dipaco.swarm.training.slices import fetch_mean, push_slice
from dipaco.swarm.training.state_holder import StateHolder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", type=float, nargs="+", default=[100, 100, 10, 10, 10, 10])
    parser.add_argument("--clients", type=int, default=3, help="the last so many only dial out")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of gradient")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    speeds = np.array(options.links) * 125_000.0
    can_reduce = np.arange(len(speeds)) < len(speeds) - options.clients
    links = [
        Link(up=speed, down=speed, can_reduce=bool(can))
        for speed, can in zip(speeds, can_reduce, strict=True)
    ]
    policies = {
        "shares of links": shares_of_links(links),
        "equal shares": can_reduce / can_reduce.sum(),
        "parameter server": (np.arange(len(speeds)) == 0).astype(float),
    }
    size = int(options.megabytes * 250_000)
    answer: dict[str, dict[str, float]] = {}
    for name, share in policies.items():
        seconds = min(asyncio.run(one_round(speeds, share, size)) for _ in range(options.rounds))
        answer[name] = {"seconds": round(seconds, 2), "bound": round(bound(speeds, share, size), 2)}
    ring = 2 * (len(speeds) - 1) / len(speeds) * 4 * size / speeds.min()
    answer["ring (bound only)"] = {"bound": round(ring, 2)}
    answer["closed form, 64 peers"] = {"microseconds": round(closed_form_microseconds(), 1)}
    for name, row in answer.items():
        print(f"{name:24}", *(f"{what} {value}" for what, value in row.items()))
    print(json.dumps(answer))


def bound(speeds: np.ndarray, share: np.ndarray, size: int) -> float:
    load = 1.0 + (len(speeds) - 2) * share
    return float(np.max(load / speeds) * 4 * size)


def closed_form_microseconds() -> float:
    b = np.exp(np.random.default_rng(0).normal(size=64))
    times = []
    for _ in range(200):
        started = time.perf_counter()
        shares(b)
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1e6


async def one_round(speeds: np.ndarray, share: np.ndarray, size: int) -> float:
    """Seconds from the plan to the last peer's last slice."""
    authority = Authority(bytes(32), "bench")
    wires, holders = [], []
    for number, speed in enumerate(speeds):
        given = authority.issue(f"peer-{number}", "volunteer", time.time(), 1.0)
        signer = Signer(given, time.time)
        verifier = Verifier(given.authority, "bench", signer.name, time.time)
        wire = Wire(signer, verifier, 1 << 28, LinkMeter(float(speed)))
        wire.transport = await Tcp.start(wire.serve)
        wires.append(wire)
        holders.append(StateHolder(wire))
    plan = RoundPlan(
        number=1,
        step=0,
        senders=tuple(Sender(name=wire.name, blocks=(0,), targets=1.0) for wire in wires),
        slices=tuple(
            Slice(start=p.start, stop=p.stop, reducer=w.name, address=w.address or "")
            for w, p in zip(wires, cut(share, size), strict=True)
            if p.stop > p.start
        ),
        codec="none",
        within_seconds=300.0,
    )
    vector = np.ones(size, np.float32)
    for holder in holders:
        holder.reducer.begin(plan)
    started = time.monotonic()
    await asyncio.gather(
        *(
            turn(wire, holder, plan, part, vector)
            for wire, holder in zip(wires, holders, strict=True)
            for part in plan.slices
        )
    )
    seconds = time.monotonic() - started
    for wire in wires:
        if wire.transport is not None:
            await wire.transport.close()
    return seconds


async def turn(
    wire: Wire, holder: StateHolder, plan: RoundPlan, part: Slice, vector: np.ndarray
) -> None:
    """What one peer does for one slice: sends its part, gets the mean."""
    await push_slice(wire, holder.reducer, plan, part, vector, within_seconds=plan.within_seconds)
    if part.reducer == wire.name:
        return
    content = (
        await fetch_mean(wire, holder.reducer, plan, part, within_seconds=plan.within_seconds)
    ).content
    if len(content) != 4 * (part.stop - part.start):
        raise DipacoError


if __name__ == "__main__":
    main()
