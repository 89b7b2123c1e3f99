"""The work of each volunteer for a run, over all paths and sessions."""

from collections import Counter, defaultdict
from typing import NamedTuple

from dipaco.control.members.swarms import Swarms


class VolunteerRecord(NamedTuple):
    """One name, and what was counted of its sessions."""

    place: int  # 1 = most samples. Equal ones share a place.
    name: str
    samples: int
    share: float  # Share of the samples of all volunteers.
    steps: int  # Group steps that it had a part in.
    paths: tuple[int, ...]
    is_here: bool
    does: str  # "computes, waits": what each of its machines does now. Empty if none is here.
    samples_per_second: float  # Speed of these machines while they compute.


def leaderboard(swarms: Swarms, batch_size: int) -> list[VolunteerRecord]:
    """The volunteers whose samples went into a step, the most samples first."""
    known = {one.name for one in swarms.credentials() if one.role == "volunteer"}
    samples: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    paths: dict[str, set[int]] = defaultdict(set)
    doing: dict[str, list[str]] = defaultdict(list)  # Activities of each volunteer that is present.
    speeds: dict[str, float] = defaultdict(float)
    for swarm in swarms.statuses():
        for session, peer in swarm["peers"].items():
            doing[_holder(session)].append(peer.get("does", ""))
            speeds[_holder(session)] += peer["samples_per_second"]
    for share in swarms.shares():
        if share.name in known:
            samples[share.name] += share.steps * round(batch_size * share.blocks / share.out_of)
            steps[share.name] += share.steps
            paths[share.name].add(share.path)
    total, ranked = samples.total(), sorted(samples, key=lambda name: (-samples[name], name))
    place_of: dict[int, int] = {}  # Samples -> place.
    for place, name in enumerate(ranked, start=1):
        place_of.setdefault(samples[name], place)
    return [
        VolunteerRecord(
            place=place_of[samples[name]],
            name=name,
            samples=samples[name],
            share=samples[name] / total,
            steps=steps[name],
            paths=tuple(sorted(paths[name])),
            is_here=name in doing,
            does=", ".join(sorted(filter(None, set(doing[name])))) if name in doing else "",
            samples_per_second=speeds[name],
        )
        for name in ranked
    ]


def _holder(session: str) -> str:
    """The credential's name of a session that is called `HOLDER/…`."""
    return session.rpartition("/")[0]
