"""A backbone's view of the run's ledger: all that it reads and writes there.

Volunteers compute with the settings of the leading backbone. A next leader with other settings
would refuse them all, so all backbones of a path share the options of `dipaco swarm start`.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from dipaco.control.ledger import Ledger
from dipaco.control.members.leaderboard import leaderboard
from dipaco.control.members.swarms import GroupStep, Swarms
from dipaco.errors import DipacoError
from dipaco.inner.config import InnerSettings
from dipaco.swarm.errors import OptionsDiffer
from dipaco.swarm.leading.members import locked_sentence
from dipaco.swarm.network.credentials import Certificate, Verifier
from dipaco.swarm.network.messages import RunOverview
from dipaco.swarm.planning.checks import Evidence
from dipaco.swarm.planning.paths import PathNeed, expected_speeds
from dipaco.swarm.training.compute import GroupSettings


def options_of(settings: GroupSettings) -> dict[str, str]:
    """Option -> value, as a person reads it."""
    return {
        "--block-rows": str(settings.block_rows),
        "--codec": settings.codec,
        "--local-steps": str(settings.local_steps),
    }


MOST_HELPERS = 1000  # limit of an overview


class BackbonePlace(NamedTuple):
    """The path and the arm that a backbone serves, and its worker."""

    arm: str
    path: int
    worker: str


def register(swarms: Swarms, place: BackbonePlace, settings: GroupSettings, address: str) -> None:
    """Records a backbone that starts. Raises `OptionsDiffer`: others of the path have other
    options.
    """
    own, (arm, path, worker) = options_of(settings), place
    recorded, workers = swarms.register(worker, arm, path, address, own)
    differing = ", ".join(
        f"`{option}` is {value} here and {recorded[option]} there"
        for option, value in own.items()
        if recorded.get(option, value) != value
    )
    if differing:
        raise OptionsDiffer(differing=differing, path=path, workers=", ".join(workers))


class BackboneLedger:
    """The ledger, for one backbone of one path. `ledger`: a connection for this object alone."""

    def __init__(self, ledger: Ledger, place: BackbonePlace, settings: GroupSettings, address: str):
        self._ledger, self._swarms = ledger, ledger.swarms
        self._place, self._settings, self._address = place, settings, address

    def close(self) -> None:
        """Removes the backbone from the ledger and closes the connection."""
        with contextlib.suppress(DipacoError):
            self._swarms.drop_backbone(self._place.worker)
        self._ledger.close()

    def put_backbone(self, *, is_staffed: bool) -> None:
        """`is_staffed`: it has volunteers. Otherwise other workers may take the path."""
        arm, path, worker = self._place
        self._swarms.put_backbone(worker, arm, path, self._address, is_staffed=is_staffed)

    def read_credentials(self, verifier: Verifier) -> dict[str, tuple[str, ...]]:
        """Gives the verifier the credentials. Returns why sessions of each were refused."""
        issued = self._swarms.credentials()
        verifier.allowed = frozenset(one.serial for one in issued)
        verifier.revoked = frozenset(one.serial for one in issued if one.is_revoked)
        verifier.locked = {
            one.serial: locked_sentence(one.name, one.reasons) for one in self._swarms.locked()
        }
        return self._swarms.refusals()

    def addresses(self) -> tuple[str, ...]:
        """Addresses of the live backbones of the path."""
        of_path = self._swarms.backbones(self._place.arm, self._place.path)
        return tuple(of_path.values()) or (self._address,)

    def volunteers_addresses(self) -> tuple[str, ...]:
        """Where volunteers of the run were reached lately."""
        peers = (one for swarm in self._swarms.statuses() for one in swarm["peers"].values())
        return tuple(one["address"] for one in peers if one["computes"] and one["address"])

    def leader(self) -> str | None:
        """The worker that led last."""
        for one in self._swarms.statuses():
            if (one["arm"], one["path"]) == (self._place.arm, self._place.path):
                return one["leader"]
        return None

    def holder_at(self, address: str) -> tuple[str, str] | None:
        """(worker, its process) of another backbone of the path at an address. None if it holds no
        claim, or was seen to leave or fall silent.
        """
        places = self._swarms.backbones(self._place.arm, self._place.path)
        for worker, at in places.items():
            if at == address and worker != self._place.worker:
                process = self._ledger.reaper.process_of_holder(worker)
                return None if process is None else (worker, process)
        return None

    def end_claims_of(self, holder: tuple[str, str]) -> int:
        """Ends the claims of a backbone whose process has ended. Returns their number."""
        return self._ledger.reaper.end_claims_of(*holder)

    def is_staffed_by_leader(self) -> bool | None:
        """True if another live backbone, which led last, has volunteers. None without one."""
        arm, path, worker = self._place
        leader = self.leader()
        if leader == worker or leader not in self._swarms.backbones(arm, path):
            return None
        return leader in self._swarms.backbones(arm, path, is_staffed=True)

    def refuse(
        self, certificate: Certificate, session: str, reason: str, evidence: Evidence | None
    ) -> tuple[str, ...]:
        """Records a refused session. Its credential may be used again, at any backbone, unless
        there is evidence.
        """
        kept = None if evidence is None else {"path": self._place.path, **evidence._asdict()}
        with contextlib.suppress(DipacoError):
            return self._swarms.refuse(certificate.serial, session, reason, kept)
        return ()

    def put_status(self, status: dict[str, Any]) -> None:
        self._swarms.put_status(self._place.arm, self._place.path, self._place.worker, status)

    def overview(self, steps: int, inner: InnerSettings) -> RunOverview:
        """The run, for people who lend a machine. `steps`: of a path, over all phases."""
        arm, batch_size = self._place.arm, inner.batch_size
        places = self._swarms.places(arm)
        left = {  # paths whose phase is due and not claimed
            task.task.path: inner.steps
            for task in self._ledger.queue.unfinished()
            if (task.task.kind, task.task.arm, task.state) == ("train", arm, "ready")
        }
        swarms = {one["path"]: one for one in self._swarms.statuses() if one["arm"] == arm}
        expected = expected_speeds({path: _volunteers(swarms.get(path, {})) for path in places})
        paths = []
        for path, addresses in sorted(places.items()):
            swarm = swarms.get(path, {})
            peers = swarm.get("peers", {}).values()
            paths.append(
                PathNeed(
                    path=path,
                    addresses=tuple(addresses),
                    step=swarm.get("step", 0),
                    samples_left=(swarm.get("steps_left") or left.get(path, 0)) * batch_size,
                    samples_per_second=sum(peer["samples_per_second"] for peer in peers),
                    volunteers=sum(peer["computes"] for peer in peers),
                    expected_samples_per_second=expected[path],
                    loss=swarm.get("loss"),
                )
            )
        helpers = leaderboard(self._swarms, batch_size)[:MOST_HELPERS]
        return RunOverview(steps=steps, paths=tuple(paths), helpers=tuple(helpers))

    def put_step(self, step: GroupStep) -> None:
        with contextlib.suppress(DipacoError):
            self._swarms.put_step(self._place.arm, self._place.path, step)


def _volunteers(swarm: dict[str, Any]) -> list[tuple[float, float]]:
    """Speed and age of each volunteer of a path, by its status."""
    peers = swarm.get("peers", {}).values()
    return [(peer["samples_per_second"], peer["seconds"]) for peer in peers if peer["computes"]]


OpenLedger = Callable[[], Ledger]
