"""The places of a storm's runs: folders with SQLite, or a bucket with PostgreSQL. Servers that the
storm starts end with it, and fail on request.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from support.environment import environment
from support.fault_proxy import FaultProxy
from support.isolated_cache import isolated_cache
from support.servers import PostgreSQLServer, postgresql, s3

SLOW_SECONDS = 2.0  # a slow answer of the store


class Places:
    """The places of one storm.

    Args:
      folder: holds everything on this machine.
      bucket: URL of the runs' objects. None = each run in its folder.
      database: as `--database` takes it. None = SQLite, in the folders.
      server: PostgreSQL, if the storm has started it.
      proxy: before the store, if the storm has started it.
    """

    def __init__(
        self,
        folder: Path,
        bucket: str | None,
        database: str | None,
        server: PostgreSQLServer | None,
        proxy: FaultProxy | None,
    ):
        self.folder, self.bucket, self.database = folder, bucket, database
        self.server, self.proxy = server, proxy

    def machine(self, number: int) -> dict[str, str]:
        """Environment of the processes of one of the machines, which are folders here. Those that
        share no run have nothing in common but compiled programs.
        """
        if self.bucket is None:
            return {}
        return {"DIPACO_CACHE": str(self.folder / f"machine-{number}")}

    def restart_database(self, seconds: float) -> bool:
        """Stops the database for so long. True if another server process answers afterwards."""
        assert self.server is not None
        before = self.server.process_id
        self.server.stop()
        time.sleep(seconds)
        self.server.start()
        return self.server.process_id not in (None, before)

    def fail_store(self, fault: str, seconds: float) -> bool:
        """Every answer is this fault, for so long and until there was one."""
        assert self.proxy is not None
        before = self.proxy.injected[fault]
        self.proxy.fail_every(1, fault)
        until = time.monotonic() + seconds
        deadline = until + 20
        while time.monotonic() < until or (
            self.proxy.injected[fault] == before and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        self.proxy.fail_every(0)
        return self.proxy.injected[fault] > before


@contextlib.contextmanager
def places(options: argparse.Namespace, folder: Path) -> Generator[Places]:
    """The places that the options ask for, with their servers running."""
    with contextlib.ExitStack() as stack:
        database, server = options.database, None
        if database == "postgresql":
            # Not below a folder that is its owner's alone: the server is another user.
            apart = stack.enter_context(tempfile.TemporaryDirectory(prefix="storm-postgresql-"))
            server = stack.enter_context(postgresql(Path(apart) / "server"))
            if server is None:
                raise SystemExit("There is no PostgreSQL here: pip install -e '.[test-all]'")
            database = server.url
        bucket, proxy = options.store, None
        if bucket == "s3":
            store = stack.enter_context(s3(folder / "s3"))
            proxy = stack.enter_context(FaultProxy(store.port, slow_seconds=SLOW_SECONDS))
            keys = {"AWS_ACCESS_KEY_ID": "storm", "AWS_SECRET_ACCESS_KEY": "storm"}
            stack.enter_context(environment(AWS_ENDPOINT_URL=proxy.url, **keys))
            bucket = f"s3://{store.new_bucket()}"
        if bucket is not None:
            for machine in ("observer", *range(options.workers)):
                isolated_cache(folder / f"machine-{machine}")
            stack.enter_context(environment(DIPACO_CACHE=str(folder / "machine-observer")))
        yield Places(folder, bucket, database, server, proxy)
