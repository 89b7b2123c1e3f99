"""The command line of a process that works on a run, and the variables that it needs."""

import os
import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

# Credentials of stores, by the names that their libraries read. They never go on a command line.
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
    """A verb of the command line and its run."""

    verb: str  # worker, executor, evaluator, monitor
    run: str  # folder or URL
    hosts: int = 1  # hosts of one worker
    variables: tuple[str, ...] = ()  # names of variables that are passed on to other machines

    def command(self, name: str, host: int = 0, coordinator: str | None = None) -> list[str]:
        """The command line of one process. With `-P` a folder `dipaco` in the working directory,
        such as a clone, is not taken for the package.
        """
        words = [self.verb, "--run", self.run]
        if self.verb != "monitor":
            words += ["--name", name]
        if self.verb == "worker":  # as many as are wanted, whatever cluster this machine is of
            words += ["--hosts", str(self.hosts)]
        if self.hosts > 1:
            assert coordinator is not None
            words += ["--host-index", str(host), "--coordinator", coordinator]
        return [sys.executable, "-P", "-m", "dipaco.cli.main", *words]

    @property
    def takes_devices(self) -> bool:
        return self.verb in ("worker", "evaluator")

    @property
    def environment(self) -> dict[str, str]:
        taken = {name: os.environ[name] for name in self.variables if name in os.environ}
        # An outer step runs in NumPy. An executor would hold a device without using it.
        return taken if self.takes_devices else {**taken, "JAX_PLATFORMS": "cpu"}


def variables_for(
    run: str, database: str | None, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Names of the variables that another machine needs to open a run.

    Args:
      database: the run's database as the user gave it: a URL, or `env:VARIABLE`.
    """
    names: Collection[str] = STORE_VARIABLES.get(run.partition("://")[0], ())
    if database is not None and database.startswith("env:"):
        names = [*names, database.removeprefix("env:")]
    return tuple(name for name in names if name in environment)
