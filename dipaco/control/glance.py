"""A glance: all that an idle worker wants to know, in one short question that takes no lock.

Thousands of idle workers ask it every second or two, so that a new task never waits long. What it
names is asked in full only where it says that there is something.
"""

import json
from collections.abc import Collection
from typing import NamedTuple

from dipaco.control.database import Database
from dipaco.control.meta import RunCommand
from dipaco.control.retry import retried
from dipaco.control.tasks import Kind


class Glance(NamedTuple):
    """A run at one moment."""

    command: RunCommand
    has_ready: bool  # a task of the worker's kinds
    has_resting: bool  # a task that is delayed or has failed
    has_unfinished: bool  # a task, of any kind, but for texts that have failed


class Glances:
    """At one run."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def look(self, kinds: Collection[Kind]) -> Glance:
        """At the run now.

        Args:
          kinds: of tasks that the worker claims.
        """
        row = self._database.one("glance", kinds=json.dumps(list(kinds)))
        assert row is not None
        command, version, *has = row
        return Glance(RunCommand(command or "run", version), *map(bool, has))
