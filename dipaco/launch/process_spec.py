"""What a process of a run is for, as the command line that starts it and what it needs to know."""

import os
import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

# Credentials of stores, by the names that their libraries read: never on a command line.
STORE_VARIABLES = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
    ),
    "gs": ("TENSORSTORE_GCS_HTTP_URL",),
}


class ProcessSpec(NamedTuple):
    """A verb of the command line, and the run it is about, which knows where its database is."""

    verb: str  # worker, executor, evaluator, monitor
    run: str  # folder or URL
    hosts: int = 1  # that share one worker
    variables: tuple[str, ...] = ()  # of the environment, to be taken along to other machines

    def command(self, name: str, host: int = 0, coordinator: str | None = None) -> list[str]:
        """The command line of one process of this role."""
        words = [self.verb, "--run", self.run]
        if self.verb != "monitor":
            words += ["--name", name]
        if self.hosts > 1:
            assert coordinator is not None
            words += ["--hosts", str(self.hosts), "--host-index", str(host)]
            words += ["--coordinator", coordinator]
        return [sys.executable, "-m", "dipaco.cli.main", *words]

    @property
    def takes_devices(self) -> bool:
        return self.verb in ("worker", "evaluator")

    @property
    def environment(self) -> dict[str, str]:
        taken = {name: os.environ[name] for name in self.variables if name in os.environ}
        # An outer step is NumPy's: an executor that asked for a device would hold it for nothing.
        return taken if self.takes_devices else {**taken, "JAX_PLATFORMS": "cpu"}


def variables_for(
    run: str, database: str | None, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Names of the variables without which another machine could not open a run.

    Args:
      run: folder or URL.
      database: as the run was given it: a URL, or `env:VARIABLE`.
      environment: of this process.
    """
    names: Collection[str] = STORE_VARIABLES.get(run.partition("://")[0], ())
    if database is not None and database.startswith("env:"):
        names = [*names, database.removeprefix("env:")]
    return tuple(name for name in names if name in environment)
