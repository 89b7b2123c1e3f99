"""The run as a whole: values that belong to it, the command that its workers follow, how many
workers are wanted, and the version that it is of.
"""

import uuid
from typing import NamedTuple

from dipaco.control.database import Database
from dipaco.control.retry import retried


class RunCommand(NamedTuple):
    """To everybody who works on a run."""

    name: str  # run, pause, drain
    version: str | None  # of the program


class DesiredWorkers(NamedTuple):
    """How many workers somebody wants a launcher to keep."""

    workers: int
    identity: str


class Meta:
    """Values of one run."""

    def __init__(self, database: Database):
        self._database = database

    def get(self, key: str) -> str | None:
        row = self._database.one("get_meta", key=key)
        return None if row is None else row[0]

    def remember(self, key: str, value: str) -> str:
        """Remembers a value unless there is one already; returns the one that is remembered."""
        with self._database.transaction():
            self._database.change("remember_meta", key=key, value=value)
        return self.get(key) or value

    @retried
    def set_command(self, name: str) -> None:
        """What everybody who works on this run should do from now on: `run`, `pause`, `drain`."""
        with self._database.transaction():
            self._database.change("change_meta", key="order", value=name)

    @retried
    def command(self) -> RunCommand:
        """What everybody should do, and which version of this program they should be."""
        found = dict(self._database.rows("run_command"))
        return RunCommand(found.get("order", "run"), found.get("version"))

    @retried
    def want_workers(self, count: int, launcher: str | None = None) -> None:
        """How many workers one launcher, or each of all, should keep from now on."""
        wish = f"{count} {uuid.uuid4().hex}"  # the same number again is another wish
        with self._database.transaction():
            self._database.change("change_meta", key=_workers_of(launcher), value=wish)

    def desired_workers(self, launcher: str) -> list[DesiredWorkers]:
        """What was wanted last of all launchers and, after it, of this one."""
        texts = [self.get(_workers_of(None)), self.get(_workers_of(launcher))]
        return [DesiredWorkers(int(text.split()[0]), text) for text in texts if text is not None]

    @retried
    def upgrade(self, version: str) -> tuple[int, int]:
        """Brings the tables to this program's, and says that from now on the run is of `version`;
        the versions of the tables, before and now.
        """
        before, now = self._database.upgrade()
        with self._database.transaction():
            self._database.change("change_meta", key="version", value=version)
            self._database.change("change_meta", key="order", value="run")
        return before, now


def _workers_of(launcher: str | None) -> str:
    return "workers" if launcher is None else f"workers {launcher}"
