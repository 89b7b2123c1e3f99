import asyncio
import contextlib
import importlib.util

import pytest

from tests.support.async_tests import arguments_of
from tests.support.tiny_run import toy_run  # noqa: F401

HAS_EXTRA = importlib.util.find_spec("cryptography") is not None
collect_ignore_glob = [] if HAS_EXTRA else ["test_*.py"]


def pytest_report_header():
    return [] if HAS_EXTRA else ["no tests/swarm: the extra `volunteer` is not installed"]


@pytest.fixture
def group():
    """A leader, to which volunteers may come; an `async def` test runs while it is there."""
    from tests.support.swarm_rig import Group

    return Group()


@pytest.fixture
def quick_backbones(monkeypatch):
    """They look at the ledger all the time, and have the programs that groups of tests have."""
    from dipaco.swarm.roles import backbone, session
    from dipaco.swarm.training.compute import Compute
    from tests.support.swarm_rig import COMPUTE

    def compute_of(settings):
        return COMPUTE if settings == COMPUTE.settings else Compute(settings)

    for module in (backbone, session):
        monkeypatch.setattr(module, "Compute", compute_of)
    monkeypatch.setattr(backbone, "STATUS_SECONDS", 0.1)


@pytest.fixture
def real_time():
    """For a test whose processes and hosts do not know of the clock that moves on by itself."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """An `async def` test runs by a clock that moves on by itself, within all that it asks for."""
    if (given := arguments_of(pyfuncitem)) is None:
        return None
    from tests.support import swarm_clock

    async def scenario():
        async with contextlib.AsyncExitStack() as entered:
            for name, value in given.items():
                if hasattr(value, "__aenter__"):
                    given[name] = await entered.enter_async_context(value)
            await pyfuncitem.obj(**given)

    if "real_time" in pyfuncitem.fixturenames:
        asyncio.run(asyncio.wait_for(scenario(), 240))
    else:
        swarm_clock.run(scenario)
    return True
