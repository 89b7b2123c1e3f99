"""What a backbone reads from the run's ledger, and what it writes there."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from dipaco.control.leaderboard import leaderboard
from dipaco.control.ledger import Ledger
from dipaco.control.swarms import GroupStep
from dipaco.errors import DipacoError
from dipaco.inner.config import InnerSettings
from dipaco.swarm.leading.member_status import locked_sentence
from dipaco.swarm.network.credentials import Certificate, Verifier
from dipaco.swarm.network.run_overview import Helper, PathNeed, RunOverview
from dipaco.swarm.planning.evidence import Evidence
from dipaco.swarm.planning.speeds import Hand, expected_speeds
from dipaco.swarm.roles import common_options
from dipaco.swarm.roles.leader import StepOutcome
from dipaco.swarm.training.compute import GroupSettings

MOST_HELPERS = 1000  # that an overview names


class BackbonePlace(NamedTuple):
    """Which path of which arm, by which worker."""

    arm: str
    path: int
    worker: str


class BackboneLedger:
    """The ledger, for one backbone of one path.

    Args:
      ledger: a connection of this object's own.
      place: of the backbone.
      settings: of its group.
      address: where peers reach it.
    """

    def __init__(self, ledger: Ledger, place: BackbonePlace, settings: GroupSettings, address: str):
        self._ledger, self._swarms = ledger, ledger.swarms
        self._place, self._settings, self._address = place, settings, address

    def close(self) -> None:
        """It is no backbone any more."""
        with contextlib.suppress(DipacoError):
            self._swarms.drop_backbone(self._place.worker)
        self._ledger.close()

    def check_options(self) -> None:
        """Raises `OptionsDiffer`: other backbones of the path have other ones."""
        common_options.check(self._swarms, self._place.arm, self._place.path, self._settings)

    def put_backbone(self, *, is_manned: bool) -> None:
        """`is_manned`: it has volunteers; else other workers may take the path."""
        arm, path, worker = self._place
        self._swarms.put_backbone(worker, arm, path, self._address, is_manned=is_manned)

    def read_credentials(self, verifier: Verifier) -> dict[str, tuple[str, ...]]:
        """What the ledger says of credentials, for the verifier. Returns why sessions of each were
        refused.
        """
        issued = self._swarms.credentials()
        verifier.allowed = frozenset(one.serial for one in issued)
        verifier.revoked = frozenset(one.serial for one in issued if one.is_revoked)
        verifier.locked = {
            one.serial: locked_sentence(one.name, one.reasons) for one in self._swarms.locked()
        }
        return self._swarms.refusals()

    def addresses(self) -> tuple[str, ...]:
        """Of the live backbones of the path."""
        of_path = self._swarms.backbones(self._place.arm, self._place.path)
        return tuple(of_path.values()) or (self._address,)

    def leader(self) -> str | None:
        """The worker that led last."""
        for one in self._swarms.statuses():
            if (one["arm"], one["path"]) == (self._place.arm, self._place.path):
                return one["leader"]
        return None

    def holder_at(self, address: str) -> tuple[str, str] | None:
        """(worker, its process) of another backbone of the path at an address, if it holds a claim
        and was not seen to leave or fall silent.
        """
        places = self._swarms.backbones(self._place.arm, self._place.path)
        for worker, at in places.items():
            if at == address and worker != self._place.worker:
                life = self._ledger.reaper.life_of_holder(worker)
                return None if life is None else (worker, life)
        return None

    def end_claims_of(self, holder: tuple[str, str]) -> int:
        """Of a backbone whose process has ended; how many it held."""
        return self._ledger.reaper.end_claims_of(*holder)

    def is_manned_by_leader(self) -> bool | None:
        """Whether another backbone, which led last and lives, has volunteers; None: there is none
        such.
        """
        arm, path, worker = self._place
        leader = self.leader()
        if leader == worker or leader not in self._swarms.backbones(arm, path):
            return None
        return leader in self._swarms.backbones(arm, path, is_manned=True)

    def refuse(
        self, certificate: Certificate, session: str, reason: str, evidence: Evidence | None
    ) -> tuple[str, ...]:
        """A session was refused: its credential may be used again, at any backbone. With evidence
        it may not.
        """
        kept = None if evidence is None else {"path": self._place.path, **evidence._asdict()}
        with contextlib.suppress(DipacoError):
            return self._swarms.refuse(certificate.serial, session, reason, kept)
        return ()

    def put_status(self, status: dict[str, Any]) -> None:
        self._swarms.put_status(self._place.arm, self._place.path, self._place.worker, status)

    def overview(self, steps: int, inner: InnerSettings) -> RunOverview:
        """How the run is, for people who lend a machine.

        Args:
          steps: of a path, in all phases.
          inner: of the run.
        """
        arm, batch_size = self._place.arm, inner.batch_size
        places = self._swarms.places(arm)
        left = {  # of paths whose phase is due and in no hands
            task.task.path: inner.steps
            for task in self._ledger.queue.unfinished()
            if (task.task.kind, task.task.arm, task.state) == ("train", arm, "ready")
        }
        swarms = {one["path"]: one for one in self._swarms.statuses() if one["arm"] == arm}
        expected = expected_speeds({path: _hands(swarms.get(path, {})) for path in places})
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
        helpers = tuple(
            Helper(
                place=one.place,
                name=one.name,
                samples=one.samples,
                share=one.share,
                is_here=one.is_here,
                does=one.does,
                samples_per_second=one.samples_per_second,
            )
            for one in leaderboard(self._swarms, batch_size)[:MOST_HELPERS]
        )
        return RunOverview(steps=steps, paths=tuple(paths), helpers=helpers)

    def put_step(self, outcome: StepOutcome) -> None:
        closed = outcome.closed
        with contextlib.suppress(DipacoError):
            self._swarms.put_step(
                self._place.arm,
                self._place.path,
                GroupStep(
                    step=closed.step,
                    lineage=closed.after,
                    loss=closed.loss,
                    targets=outcome.targets,
                    seconds=outcome.seconds,
                    blocks={name: list(blocks) for name, blocks in outcome.blocks_by_peer.items()},
                    delay=closed.delay,
                ),
            )


def _hands(swarm: dict[str, Any]) -> list[Hand]:
    """The volunteers of a path, by its status."""
    return [
        Hand(
            peer["samples_per_second"],
            peer.get("declared_samples_per_second", 0.0),
            peer["seconds"],
        )
        for peer in swarm.get("peers", {}).values()
        if peer["computes"]
    ]


OpenLedger = Callable[[], Ledger]
