"""What a process of a run is for, as the command line that starts it."""

import sys
from typing import NamedTuple


class Role(NamedTuple):
    """A verb of the command line, and the run it is about."""

    verb: str  # worker, executor, evaluator, monitor
    run: str  # folder or URL
    database: str | None = None  # as a person would give it: never with a password

    def command(self, name: str) -> list[str]:
        """The command line of one process of this role."""
        where = [] if self.database is None else ["--database", self.database]
        words = [self.verb, "--run", self.run, *where, "--name", name]
        return [sys.executable, "-m", "dipaco.cli.main", *words]
