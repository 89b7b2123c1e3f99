"""Retention: which objects of the store no fact needs any more, and which must stay.

A worker that deletes objects holds no claim: their task is done. So each batch is decided in a
transaction that says so. No run goes back while a live worker is deleting. If a worker was silent,
the run goes back, and the worker finds before the next object that it may delete nothing.
"""

import uuid
from collections.abc import Callable, Iterable

from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.keeping.cleaning import lock_whole_run
from dipaco.control.planning.release import Release
from dipaco.control.process_id import ProcessId
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import Plan
from dipaco.topology import ModuleId

GOING_BACK = "going back"  # A key that a batch of deletions drops.


class Retention:
    """The retention of one run."""

    def __init__(self, database: Database):
        self._database = database
        self._deleting = f"deleting {uuid.uuid4().hex}"  # a key of `meta`

    @retried
    def begin_deleting(self, find: Callable[[], Iterable[str]]) -> list[str]:
        """The names that `find` gives. If there are any, this process may delete their objects
        until `end_deleting`.
        """
        with self._database.transaction(is_durable=False):
            lock_whole_run(self._database)
            if names := list(find()):
                process_id = str(ProcessId.here())
                self._database.change("change_meta", key=self._deleting, value=process_id)
                self._database.change("forget_meta", keys=GOING_BACK)
        return names

    def may_delete(self) -> bool:
        """True unless `stop_deletions` has come since `begin_deleting`."""
        return self._database.one("get_meta", key=self._deleting) is not None

    @retried
    def end_deleting(self) -> None:
        """The batch is deleted."""
        with self._database.transaction(is_durable=False):
            self._database.change("forget_meta", keys=self._deleting)

    def superseded_contributions(
        self, arm: Arm, module: ModuleId, newest: int, keep: int
    ) -> list[str]:
        """Names of the contributions that a module at phase `newest` leaves behind. Those of `keep`
        phases are kept, the one that is being gathered included. Where a contribution may have been
        late, as many steps are kept.
        """
        of = {"arm": arm.name, "module": str(module), "newest": newest, "keep": keep}
        query = "superseded_taken" if arm.has_quorum else "superseded_contributions"
        return [name for (name,) in self._database.rows(query, **of)]

    def superseded_snapshots(self, arm: str, path: int, newest: int, keep: int) -> list[str]:
        """Names of the snapshots that a path's snapshot after phase `newest` leaves behind, where
        `keep` are kept.
        """
        of = {"arm": arm, "path": path, "newest": newest, "keep": keep}
        return [name for (name,) in self._database.rows("superseded_snapshots", **of)]

    def superseded_modules(
        self, arm: str, module: ModuleId, phase: int, newest: int, since: int | None = None
    ) -> list[str]:
        """Names of a module's parameters and outer state at a phase, where no other fact has
        them.

        Args:
          newest: the phase that the module must have reached.
          since: the module's facts of the phases after this one, up to `phase`, do not count: what
            they have alone goes now, where the module did not step between. None = of `phase`
            alone.
        """
        since = phase - 1 if since is None else since
        of = {"arm": arm, "module": str(module), "phase": phase, "newest": newest, "since": since}
        return [name for (name,) in self._database.rows("superseded_modules", **of)]

    def paths_at_best(self, arm: Arm, phase: int) -> set[int]:
        """The paths that stop at this phase by their newest check, or by a release's check."""
        rows = self._database.rows("checks_at_best", arm=arm.name, phase=phase)
        return {path for path, at, is_newest in rows if is_newest or arm.is_evaluated(at)}

    def live_names(self, *, snapshots: int, contributions: int, but: str = "") -> set[str]:
        """Names of the newest snapshots of every path, without the arm `but`, and of the newest
        phases of contributions, so many of each. Partial snapshots are included.
        """
        keep = {"snapshots": snapshots, "contributions": contributions, "but": but}
        return {name for (name,) in self._database.rows("live_names", **keep)}

    def modules_of_finished(self, plan: Plan, arm: str, *, states: int) -> set[str]:
        """Names of the modules that a finished run is asked for: modules of every release, the base
        model, modules of `arm` at every phase, and its outer states at the newest `states` phases.
        """
        needed, newest = self.released(plan), plan.arm(arm).phases
        for of, phase, name, state_name in self._database.rows("module_objects"):
            if of == arm:
                needed.add(name)
                if state_name is not None and phase > newest - states:
                    needed.add(state_name)
        return needed

    def released(self, plan: Plan, *, is_newest_only: bool = False) -> set[str]:
        """Names of the modules of every release, or of the newest of each arm. Included are the
        modules as they were at its phase, and the base model, which routes.
        """
        releases = sorted(self._database.rows("release_bodies"))
        newest = {arm: phase for arm, phase, _ in releases}
        last = newest | {plan.base.name: plan.base.phases}
        # A release of paths that stopped early need not hold its modules as they were in the end.
        needed = {
            name
            for arm, phase, name, _ in self._database.rows("module_objects")
            if phase == last.get(arm)
        }
        for arm, phase, body in releases:
            if phase == newest[arm] or not is_newest_only:
                release = Release.from_json(body)
                needed |= {receipt.name for receipt in release.objects.values()}
        return needed

    def object_bytes(self) -> dict[str, int]:
        """Name -> bytes of every module, state, contribution, snapshot and score that was ever
        recorded. Many are deleted by now.
        """
        return dict(self._database.rows("object_bytes"))


def deleting_workers(database: Database) -> list[str]:
    """Names of the live workers that are deleting objects."""
    here = ProcessId.here()
    return [
        name
        for name, process in database.rows("deleting_workers")
        if (neighbour := here.neighbour(process)) is None or not neighbour.is_over()
    ]


def stop_deletions(database: Database) -> None:
    """Inside a transaction that holds the lock of the whole run: nobody deletes the rest of what
    was decided before.
    """
    database.change("forget_meta", keys="deleting %")
