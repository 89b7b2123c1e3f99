"""The run as a whole: its named values, the command that its workers follow, the number of workers
that launchers keep, and the program version that it is pinned to.
"""

import json
import secrets
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from dipaco.control.claims.history import note_event
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.planning.tasks import Kind


class RunCommand(NamedTuple):
    """The present command to the workers of a run, and the program version that they must have."""

    name: str  # run, pause, drain
    version: str | None  # The run is pinned to it.


class DesiredWorkers(NamedTuple):
    """A request to a launcher to keep so many workers."""

    workers: int
    identity: str  # Tells requests apart: the same number asked for again is another request.


class LauncherState(NamedTuple):
    """The arguments of a launcher, and the number of workers that it keeps since."""

    given: int  # `--workers`
    wanted: int
    requests: Sequence[str]  # Identities of the requests that it followed, and of older ones.


class WorkSummary(NamedTuple):
    """All that an idle worker wants to know of a run, at one moment."""

    command: RunCommand
    has_ready: bool  # A task of the worker's kinds is ready.
    has_delayed_or_failed: bool  # A task is delayed or has failed.
    has_unfinished: bool  # A task of any kind is not done; a failed `sample` does not count.


class Meta:
    """Values of one run, by name."""

    def __init__(self, database: Database):
        self._database = database

    def get(self, key: str) -> str | None:
        row = self._database.one("get_meta", key=key)
        return None if row is None else row[0]

    @retried
    def remember(self, key: str, value: str) -> str:
        """Stores a value unless there is one already. Returns the one that is stored."""
        with self._database.transaction():
            self._database.change("remember_meta", key=key, value=value)
        return self.get(key) or value

    @retried
    def change_config(self, config: str) -> None:
        """The run's settings from now on, JSON. Processes that work on it keep what they read."""
        with self._database.transaction():
            self._database.change("change_meta", key="config", value=config)

    def hosts_secret(self) -> str:
        """The secret that the hosts of a worker sign with. The first call makes it. Each process
        that reads the ledger has it.
        """
        return self.remember("hosts_secret", secrets.token_hex(32))

    @retried
    def set_command(self, name: str) -> None:
        """Tells the workers of this run what to do from now on: `run`, `pause`, `drain`."""
        with self._database.transaction():
            self._database.change("change_meta", key="command", value=name)
            note_event(self._database, "command", reason=name)

    @retried
    def command(self) -> RunCommand:
        found = dict(self._database.rows("run_command"))
        return RunCommand(found.get("command", "run"), found.get("version"))

    @retried
    def work_summary(self, kinds: Collection[Kind]) -> WorkSummary:
        """One short question without a lock. Thousands of idle workers ask it every second or two,
        so that a new task never waits long. What it names is asked in full only if it is there.
        """
        row = self._database.one("work_summary", kinds=json.dumps(list(kinds)))
        assert row is not None
        command, version, *has = row
        return WorkSummary(RunCommand(command or "run", version), *map(bool, has))

    @retried
    def want_workers(self, count: int, launcher: str | None = None) -> None:
        """Sets how many workers one launcher keeps from now on. None = every launcher."""
        request = f"{count} {uuid.uuid4().hex}"
        with self._database.transaction():
            self._database.change("change_meta", key=_workers_of(launcher), value=request)

    def desired_workers(self, launcher: str) -> list[DesiredWorkers]:
        """The last request to all launchers, then the last to this one."""
        texts = [self.get(_workers_of(None)), self.get(_workers_of(launcher))]
        return [DesiredWorkers(int(text.split()[0]), text) for text in texts if text is not None]

    @retried
    def note_launcher(self, launcher: str, state: LauncherState) -> None:
        """For the same command, when it is started again."""
        with self._database.transaction():
            values = {"key": f"launcher {launcher}", "value": json.dumps(state)}
            self._database.change("change_meta", **values)

    def launcher(self, name: str) -> LauncherState | None:
        """The state that was noted last. None = no launcher of this name was ever started."""
        text = self.get(f"launcher {name}")
        return None if text is None else LauncherState(*json.loads(text))

    def launcher_process(self, name: str) -> str | None:
        """The process that took the name last. None = no process has."""
        return self.get(_process_of(name))

    def launchers(self) -> dict[str, str]:
        """Name of every launcher that was ever started on this run -> its last process."""
        rows = self._database.rows("launchers")
        return {key.removeprefix(_process_of("")): process for key, process in rows}

    @retried
    def take_launcher_name(self, name: str, process_id: str, *, after: str | None) -> bool:
        """Records that a launcher has a name.

        Args:
          after: `launcher_process` as it was seen. None = no process had the name.

        Returns:
          False: another process took the name first.
        """
        with self._database.transaction():
            self._database.lock(_process_of(name))
            if self.get(_process_of(name)) not in (after, process_id):
                return False
            self._database.change("change_meta", key=_process_of(name), value=process_id)
            return True

    @retried
    def pin(self, version: str, command: str, clear: Callable[[], None]) -> None:
        """Pins the run to `version` of the program, and ends the drain that it had for that.

        Args:
          command: holds from now on, unless another was given during the drain.
          clear: done in the same transaction.
        """
        with self._database.transaction():
            clear()
            self._database.change("change_meta", key="version", value=version)
            if self.command().name == "drain":
                self._database.change("change_meta", key="command", value=command)


def _workers_of(launcher: str | None) -> str:
    return "workers" if launcher is None else f"workers {launcher}"


def _process_of(launcher: str) -> str:
    return f"process of launcher {launcher}"
