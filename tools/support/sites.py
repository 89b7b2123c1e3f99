"""Hosts that share a PostgreSQL server and a bucket behind another host, and nothing else: each has
its folder, its host name, its cache, and a link of a given rate.

    with site(["ana", "bo"], folder, megabits=20.0) as at:
        at.start("ana", ["worker", "--run", f"{at.bucket}/run"], {"step_seconds": 0.5, ...})

The process that makes them is on the servers' host meanwhile, and so are the runs that it opens.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.environment import environment
from support.hosts import Host, Hosts, why_not
from support.isolated_cache import isolated_cache
from support.servers import PostgreSQLServer, postgresql, postgresql_programs, s3

MISBEHAVE = Path(__file__).parents[1] / "misbehave.py"
SERVERS = "servers"  # the host of database and bucket
KEYS = {"AWS_ACCESS_KEY_ID": "site", "AWS_SECRET_ACCESS_KEY": "site"}


def why_no_site() -> str | None:
    """Reason why there can be none here, as a sentence, or None."""
    if (problem := why_not()) is not None:
        return problem
    if postgresql_programs() is None:
        return "no hosts with servers here: install PostgreSQL, or '.[test-all]' of this clone."
    return None


class Site:
    """The hosts and servers of one tool.

    Args:
      folder: of everything.
      hosts: hosts by name, with `SERVERS` among them.
      database: on the servers' host.
      bucket: URL of the runs' objects.
    """

    def __init__(self, folder: Path, hosts: Hosts, database: PostgreSQLServer, bucket: str):
        self.folder, self.hosts, self.database, self.bucket = folder, hosts, database, bucket

    def host(self, name: str) -> Host:
        return self.hosts[name]

    def start(
        self,
        name: str,
        words: Sequence[str],
        orders: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        log: str | None = None,
    ) -> subprocess.Popen:
        """A `dipaco` command line on a host, in a process that does what `misbehave.py` is told.

        Args:
          name: the host.
          words: verb and options.
          orders: request for `misbehave.py`.
          variables: added to the site's environment.
          log: its output goes into LOG.log, in the host's folder. None = HOST.log.
        """
        command = [sys.executable, str(MISBEHAVE), json.dumps(orders or {}), *words]
        with (self.folder / name / f"{log or name}.log").open("a") as file:
            return self.hosts[name].popen(
                _as_host(name, command),
                stdout=file,
                stderr=file,
                env={**os.environ, "DIPACO_CACHE": str(self.cache(name)), **(variables or {})},
                cwd=self.folder / name,
            )

    def cache(self, name: str) -> Path:
        """The cache folder of a host."""
        return self.folder / name / "cache"


@contextlib.contextmanager
def site(
    names: Sequence[str],
    folder: Path,
    megabits: float,
    store_megabits: float | None = None,
) -> Generator[Site]:
    """The hosts, with their servers running. All processes end with it.

    Args:
      names: the hosts.
      folder: holds a new folder for each host.
      megabits: a second, of every host's link, in each direction.
      store_megabits: the servers' link. None = as fast as this machine.
    """
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Hosts(SERVERS, *names))
        for name in (SERVERS, *names):
            (folder / name).mkdir()
            isolated_cache(folder / name / "cache")
        # Not below a folder that is its owner's alone: the server is another user.
        apart = stack.enter_context(tempfile.TemporaryDirectory(prefix="site-postgresql-"))
        database = stack.enter_context(postgresql(Path(apart) / "server", hosts[SERVERS]))
        if database is None:
            raise SystemExit(why_no_site())
        store = stack.enter_context(s3(folder / SERVERS / "s3", hosts[SERVERS]))
        cache = str(folder / SERVERS / "cache")
        stack.enter_context(
            environment(AWS_ENDPOINT_URL=store.url, DIPACO_CACHE=cache, XLA_FLAGS="", **KEYS)
        )
        bucket = f"s3://{store.new_bucket()}"
        for name in names:
            hosts[name].link.rate(megabits)
        if store_megabits is not None:
            hosts[SERVERS].link.rate(store_megabits)
        stack.enter_context(hosts[SERVERS].entered())
        yield Site(folder, hosts, database, bucket)


def _as_host(name: str, command: Sequence[str]) -> list[str]:
    """The same command under another host name."""
    if shutil.which("hostname") is None:
        return list(command)
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name, *command]
