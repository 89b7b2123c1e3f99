"""Engines to be tested: processes of this machine, and a Ray cluster of three nodes."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of three nodes on this machine: a head, and two with two CPUs each."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "XLA_FLAGS": "",  # its workers are as a user's are: no fake devices
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20},
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2, object_store_memory=80 << 20, wait=False)
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Every wait of these tests has an end."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, which has not ended."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False
