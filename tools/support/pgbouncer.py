"""A real PgBouncer before a PostgreSQL server, for tests. It dies with the process that started it.

It pools by the transaction: each one is given to any of the few connections to the server, whatever
client it comes from. Debian's package is `pgbouncer`.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

from support.servers import NOBODY, PostgreSQLServer, free_port, wait_until_it_listens

CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 1000
"""


class PgBouncer:
    """A pooler in a folder.

    Args:
      program: of it.
      folder: of its settings and its log.
      server: that it is before.
      connections: that it keeps to the server at most.
    """

    def __init__(self, program: str, folder: Path, server: PostgreSQLServer, connections: int):
        self.connections, port = connections, free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        folder.mkdir(parents=True)
        settings = {"port": port, "server_port": server.port, "connections": connections}
        (folder / "users").write_text('"postgres" ""\n')
        (folder / "settings").write_text(CONFIG.format(folder=folder, **settings))
        command = [program, str(folder / "settings")]
        if os.getuid() == 0:  # It refuses to run as root.
            folder.parent.chmod(0o711)
            user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            command = ["setpriv", *user, "--pdeathsig", "KILL", *command]
        with (folder / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until_it_listens(self._process, port)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)


@contextlib.contextmanager
def pgbouncer(
    folder: Path, server: PostgreSQLServer, connections: int = 3
) -> Generator[PgBouncer | None]:
    """A running pooler, or None if it is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        yield None
        return
    pooler = PgBouncer(program, folder, server, connections)
    try:
        yield pooler
    finally:
        pooler.stop()
