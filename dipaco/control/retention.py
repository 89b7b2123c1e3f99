"""Retention: which objects of the store no fact needs any more, and which must stay."""

from dipaco.control.database import Database
from dipaco.topology import ModuleId


class Retention:
    """Of one run."""

    def __init__(self, database: Database):
        self._database = database

    def superseded_contributions(
        self, arm: str, module: ModuleId, newest: int, keep: int, *, has_quorum: bool = False
    ) -> list[str]:
        """Names of the contributions that a module at phase `newest` leaves behind, where those of
        `keep` phases are kept, the one that is being gathered included; of as many steps, where a
        contribution may have been late.
        """
        of = {"arm": arm, "module": str(module), "newest": newest, "keep": keep}
        query = "superseded_taken" if has_quorum else "superseded_contributions"
        return [name for (name,) in self._database.rows(query, **of)]

    def superseded_snapshots(self, arm: str, path: int, newest: int, keep: int) -> list[str]:
        """Names of the snapshots that a path's snapshot after phase `newest` leaves behind, where
        `keep` are kept.
        """
        of = {"arm": arm, "path": path, "newest": newest, "keep": keep}
        return [name for (name,) in self._database.rows("superseded_snapshots", **of)]

    def superseded_modules(self, arm: str, module: ModuleId, phase: int) -> list[str]:
        """Names of a module's parameters and outer state at a phase, where no other fact has
        them.
        """
        of = {"arm": arm, "module": str(module), "phase": phase}
        return [name for (name,) in self._database.rows("superseded_modules", **of)]

    def live_names(self, *, snapshots: int, contributions: int) -> set[str]:
        """Names of the newest snapshots of every path and of the newest phases of contributions,
        so many of each, and of what stopped part-way.
        """
        keep = {"snapshots": snapshots, "contributions": contributions}
        return {name for (name,) in self._database.rows("live_names", **keep)}
