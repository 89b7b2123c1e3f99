"""Eight fake CPU devices, rank promotion raises; where everything is installed, a skip is a
failure.
"""

import os
import sys

import pytest

sys.path.append(os.path.dirname(__file__))

from tiny_run import config_file, copy_of, dipaco, half, tiny  # noqa: F401

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """`.ci/run` installs every extra: there, a test that is skipped for a missing package fails."""
    report = yield
    if report.skipped and os.environ.get("DIPACO_EVERYTHING_INSTALLED"):
        report.outcome = "failed"
    return report
