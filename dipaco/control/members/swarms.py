"""The ledger's records of swarms: credentials, backbones, group steps, and the status of each."""

import json
from typing import Any, NamedTuple

from dipaco.control.database.contract import Database, storable
from dipaco.control.database.retry import retried

REFUSALS = "swarm_refusals"  # Key prefix, before serial and session, of the reason of a refusal.
EVIDENCE = "swarm_evidence"  # likewise, of a session that was found to lie
OPTIONS = "swarm_options"  # Key prefix, before arm and path, of a path's options.
UNSTAFFED = "unstaffed "
MAX_REFUSALS = 3  # A credential is locked after so many refused sessions.
PROVED = "proved"  # A reason that begins so locks a credential at once.


def is_locking(reasons: tuple[str, ...]) -> bool:
    """True if a credential is locked whose sessions were refused for that."""
    return len(reasons) >= MAX_REFUSALS or any(one.startswith(PROVED) for one in reasons)


class IssuedCredential(NamedTuple):
    """A credential that was issued, without its private key, which its holder alone has."""

    serial: str
    name: str
    role: str
    not_after: float  # seconds of the wall clock
    is_revoked: bool


class LockedCredential(NamedTuple):
    """A credential that lets nobody in any more, and why."""

    serial: str
    name: str
    reasons: tuple[str, ...]  # One for each refused session.


class GroupStep(NamedTuple):
    """A step that a swarm has taken, and the blocks of its batch that each peer computed."""

    step: int
    lineage: str
    loss: float
    targets: float
    seconds: float
    blocks: dict[str, list[int]]
    # random sums of the mean gradient, whose seed is the lineage
    sketch: tuple[float, ...] = ()
    steps: int = 1  # Steps that its members took by themselves.


class StepShare(NamedTuple):
    """The number of a path's steps in which a name computed so many blocks."""

    path: int
    name: str
    blocks: int
    out_of: int  # blocks of a step's whole batch
    steps: int


class Swarms:
    """The swarms of one run."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def issue(self, serial: str, name: str, role: str, not_after: float) -> None:
        """Puts a credential on the list of accepted ones."""
        with self._database.transaction():
            self._database.change(
                "put_swarm_credential", serial=serial, name=name, role=role, not_after=not_after
            )

    @retried
    def revoke(self, name: str) -> int:
        """Revokes all credentials of a volunteer. Returns how many it has had."""
        with self._database.transaction():
            return self._database.change("revoke_swarm_credentials", name=name)

    @retried
    def refuse(
        self, serial: str, session: str, reason: str, evidence: dict[str, Any] | None = None
    ) -> tuple[str, ...]:
        """A session of a credential was refused for good. It counts once. The `MAX_REFUSALS`th
        locks the credential, and the first that is `PROVED`, of which `evidence` (JSON values) is
        kept. Returns the reasons of all of them.
        """
        key, reason = f"{REFUSALS}/{serial}/{session}", storable(reason)
        with self._database.transaction():
            self._database.change("remember_meta", key=key, value=reason)
            if evidence is not None:
                kept = json.dumps({"session": session, "serial": serial, **evidence})
                key = f"{EVIDENCE}/{serial}/{session}"
                self._database.change("remember_meta", key=key, value=kept)
            reasons = self._refusals(serial)[serial]
            if is_locking(reasons):
                self._database.change("lock_swarm_credential", serial=serial)
        return reasons

    @retried
    def refusals(self) -> dict[str, tuple[str, ...]]:
        """Serial of a credential -> why its sessions were refused."""
        return self._refusals("%")

    def _refusals(self, serial: str) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for key, reason in self._database.rows("swarm_refusals", keys=f"{REFUSALS}/{serial}/%"):
            of = key.split("/", 2)[1]
            found[of] = (*found.get(of, ()), reason)
        return found

    def locked(self) -> list[LockedCredential]:
        refusals = self.refusals()
        return [
            LockedCredential(one.serial, one.name, refusals[one.serial])
            for one in self.credentials()
            if is_locking(refusals.get(one.serial, ()))
        ]

    @retried
    def evidence(self) -> list[dict[str, Any]]:
        """The recorded evidence that sessions have lied."""
        rows = self._database.rows("swarm_refusals", keys=f"{EVIDENCE}/%")
        return [json.loads(value) for _, value in rows]

    @retried
    def credentials(self) -> list[IssuedCredential]:
        rows = self._database.rows("swarm_credentials")
        return [IssuedCredential(*row[:4], bool(row[4])) for row in rows]

    @retried
    def put_backbone(
        self, worker: str, arm: str, path: int, address: str, *, is_staffed: bool = True
    ) -> None:
        """Records that `worker` is the backbone of a path.

        Other workers leave the path to it from now on, as long as it lives and has volunteers
        (`is_staffed`). It claims no other path, and without volunteers none.
        """
        subject = str(path) if is_staffed else _unstaffed(path)
        with self._database.transaction():
            self._database.change(
                "put_swarm_backbone", worker=worker, arm=arm, subject=subject, address=address
            )

    @retried
    def register(
        self, worker: str, arm: str, path: int, address: str, options: dict[str, str]
    ) -> tuple[dict[str, str], list[str]]:
        """Records a backbone without volunteers, and the options that all backbones of a path have
        in common. Records nothing if there are other options and some backbone has not left in
        order. Returns the options, and the backbones before this one.
        """
        key = _options_of(arm, path)
        subjects = {"subject": str(path), "other": _unstaffed(path)}
        with self._database.transaction():
            self._database.lock(key)  # of two that start at once
            workers = self._database.rows("registered_backbones", arm=arm, **subjects)
            row = self._database.one("get_meta", key=key)
            known = options if row is None or not workers else json.loads(row[0])
            if known == options:
                self._database.change("change_meta", key=key, value=json.dumps(options))
                where = {"subject": _unstaffed(path), "address": address}
                self._database.change("put_swarm_backbone", worker=worker, arm=arm, **where)
        return known, [name for (name,) in workers]

    def options(self, arm: str, path: int) -> dict[str, str]:
        """Options that the backbones of a path have in common. Empty before there are any."""
        row = self._database.one("get_meta", key=_options_of(arm, path))
        return {} if row is None else json.loads(row[0])

    @retried
    def drop_backbone(self, worker: str) -> None:
        with self._database.transaction():
            self._database.change("drop_swarm_backbone", worker=worker)

    @retried
    def backbones(self, arm: str, path: int, *, is_staffed: bool | None = None) -> dict[str, str]:
        """Worker -> address of the live backbones, the newest heartbeat first.

        `is_staffed`: only those with volunteers, or without. None = all.
        """
        subjects = str(path), _unstaffed(path)
        first, second = subjects if is_staffed is None else (subjects[not is_staffed],) * 2
        return dict(self._database.rows("swarm_backbones", arm=arm, subject=first, other=second))

    @retried
    def addresses(self) -> list[str]:
        """Addresses at which volunteers reach the live backbones of all paths."""
        return [address for (address,) in self._database.rows("swarm_addresses")]

    @retried
    def places(self, arm: str) -> dict[int, list[str]]:
        """Path -> the addresses of its live backbones, with volunteers or without."""
        found: dict[int, list[str]] = {}
        for subject, address in self._database.rows("swarm_places", arm=arm):
            found.setdefault(int(subject.removeprefix(UNSTAFFED)), []).append(address)
        return found

    @retried
    def wants(self, arm: str, path: int, worker: str) -> bool:
        """True if a live backbone has volunteers for a path that `worker` trains without them."""
        values = {"arm": arm, "subject": str(path), "worker": worker}
        return bool(self._database.rows("swarm_wants", **values))

    @retried
    def put_step(self, arm: str, path: int, step: GroupStep) -> None:
        with self._database.transaction(is_durable=False):
            values = step._asdict()
            values["blocks"] = json.dumps(step.blocks)
            values["sketch"] = json.dumps(step.sketch)
            self._database.change("put_swarm_step", arm=arm, path=path, **values)

    @retried
    def steps(self, arm: str, path: int) -> list[GroupStep]:
        rows = self._database.rows("swarm_steps", arm=arm, path=path)
        return [
            GroupStep(*row[:5], json.loads(row[5]), tuple(json.loads(row[6])), row[7])
            for row in rows
        ]

    @retried
    def shares(self) -> list[StepShare]:
        """The shares of all steps. They cost the same after any number of steps."""
        return [StepShare(*row) for row in self._database.rows("swarm_shares")]

    @retried
    def put_status(self, arm: str, path: int, leader: str, status: dict[str, Any]) -> None:
        with self._database.transaction(is_durable=False):
            self._database.change(
                "put_swarm_status", arm=arm, path=path, leader=leader, status=json.dumps(status)
            )

    @retried
    def statuses(self) -> list[dict[str, Any]]:
        """Status of every swarm, as its leader last wrote it."""
        return [
            {"arm": arm, "path": path, "leader": leader, **json.loads(status)}
            for arm, path, leader, status in self._database.rows("swarm_status")
        ]


def _options_of(arm: str, path: int) -> str:
    return f"{OPTIONS}/{arm}/{path}"


def _unstaffed(path: int) -> str:
    """The subject of a backbone without volunteers. No task has it."""
    return f"{UNSTAFFED}{path}"
