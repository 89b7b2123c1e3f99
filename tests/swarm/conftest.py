import contextlib
import importlib.util
import inspect

import pytest

from tests.support.tiny_run import TOY

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
def run(tmp_path):
    """A run of the toy corpus."""
    from dipaco.runs.opening import create_or_open

    opened, _ = create_or_open(tmp_path / "run", TOY)
    yield opened
    opened.ledger.close()


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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """An `async def` test runs by a clock that moves on by itself."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from tests.support import swarm_clock

    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}

    async def scenario():
        async with contextlib.AsyncExitStack() as entered:
            if hasattr(given.get("group"), "__aenter__"):
                await entered.enter_async_context(given["group"])
            await pyfuncitem.obj(**given)

    swarm_clock.run(scenario)
    return True
