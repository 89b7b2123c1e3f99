"""The markers of the suite: every test has exactly one of four, given here.

    law       a statement about values; no files
    contract  an interface with its real neighbours, in one process
    process   processes that are started, killed, asked over a socket
    cluster   a Ray cluster, several hosts, storms, browsers, a database server with a bucket

`slow` comes on top: it keeps a test of many seconds out of the plain `pytest`, which runs what is
FAST. A command that names files, tests or `-m` runs what it names.
"""

import inspect
from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

MARKERS = ("cluster", "process", "contract", "law")  # in the order in which they are run
FAST = "not cluster and not slow"

CLUSTER = (
    "dashboard/test_page.py",
    "dashboard/test_page_of_texts.py",
    "serving/test_http_page.py",
    "system/test_bucket.py",
    "system/test_swarm_at_home.py",
    "system/test_swarm_storm.py",
)
PROCESS = (
    *("cli/test_interrupts.py", "cli/test_main.py", "cli/test_dashboard.py"),
    *("cli/test_swarm.py", "cli/test_swarm_leaving.py"),
    *("launch", "system", "serving/test_http_server.py", "sweeps/test_ablate.py"),
    *("tools/test_bench_gpu.py", "tools/test_hosts.py", "tools/test_mutants.py"),
)
LAW = (
    *("algorithm", "evaluation", "inner", "model", "outer", "routing", "topology", "test_trees.py"),
    *("test_config.py", "test_configs.py", "test_house.py", "test_pages.py"),
    *("control/test_scheduler.py", "data/test_pack.py", "serving/test_sampling.py"),
    *("swarm/test_codecs.py", "swarm/test_leases.py", "swarm/test_shares.py"),
)
STARTS_A_CLUSTER = {"cluster", "storm", "pair"}  # fixtures that do
STARTS_A_PROCESS = {"dipaco", "half", "hosts"}  # arguments of a test, not what its fixtures ask for
NEEDS_FILES = {"tmp_path", "tiny"}


def marker_of(item: pytest.Item) -> str:
    """By a mark on the test, by what it asks for, by where it stands."""
    marked = [marker for marker in MARKERS if item.get_closest_marker(marker)]
    assert len(marked) <= 1, f"{item.nodeid} has the markers {marked}"
    if marked:
        return marked[0]
    file = item.path.relative_to(Path(__file__).parents[1])
    among = lambda places: file.as_posix() in places or file.parts[0] in places  # noqa: E731
    fixtures = set(getattr(item, "fixturenames", ()))
    arguments = set(inspect.signature(getattr(item, "function", marker_of)).parameters)
    if among(CLUSTER) or fixtures & STARTS_A_CLUSTER or {"postgresql_server", "bucket"} <= fixtures:
        return "cluster"
    if file.name == "test_engines.py" and "[ray]" in item.name:
        return "cluster"
    if arguments & STARTS_A_PROCESS or (among(PROCESS) and "here" not in arguments):
        return "process"
    return "law" if among(LAW) and not fixtures & NEEDS_FILES else "contract"


def pytest_configure(config: pytest.Config) -> None:
    """Where nothing is named, what is fast is run. Decided in each process, from the same words."""
    names_nothing = config.args_source is not pytest.Config.ArgsSource.ARGS
    if names_nothing and not config.option.markexpr and not config.option.keyword:
        config.option.markexpr = FAST


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test, and puts those that take long first, so that no process ends long after the
    others.
    """
    for item in items:
        item.add_marker(marker_of(item))
    rank = lambda item: MARKERS.index(marker_of(item))  # noqa: E731
    items.sort(key=lambda item: (rank(item), item.get_closest_marker("slow") is None))


SERVED = ("http_", "likelihood", "releases", "rerouting", "short_tokenizer")  # they ask the run


class _ByFile(LoadFileScheduling):
    """Tests of a file are run in one process, for their fixtures; so are all that need the Ray
    cluster, all that ask the served run, and all others of serving: each has its programs.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        needs_ray = "test_ray" in file or ("test_engines.py" in file and nodeid.endswith("[ray]"))
        if needs_ray:
            return "ray"
        room, _, name = file.rpartition("serving/test_")
        return file if not room else "http" if name.startswith(SERVED) else "loop"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    return _ByFile(config, log)
