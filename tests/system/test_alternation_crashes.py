"""A run with every setting of the published algorithm, killed at tasks that only such a run has,
and robbed of what they made, ends with the facts of an undisturbed one.
"""

import json
from pathlib import Path

import pytest

from tests.support.tiny_run import Fault, facts, in_ledger, report
from tests.system.test_crashes import killed_at_each

SETTINGS = [
    *("phases=2", "routing.alternations=1", "routing.overlap=2", "outer.path_share=0.5"),
    *("inner.hold_out=0.1", "reroute.every=8", "reroute.steps=6", "baselines=[]"),
    *("samples.prompts=3", "samples.tokens=8"),
]
SETS = [f"--set={setting}" for setting in SETTINGS]
FAULTS = [
    Fault("after record", "route"),  # until the first shards are there, it is a run as any other
    Fault("after claim", "check"),
    Fault("before record", "label", nth=2),
    Fault("inside save", "route", nth=2),
    Fault("inside record", "route"),
    Fault("after claim", "sample"),
    Fault("before record", "sample"),
    Fault("inside record", "sample", nth=2),
    Fault("before record", "reroute"),
]


def arguments(config, folder):
    return ["train", config, "--run", folder, *SETS]


@pytest.fixture(scope="module")
def undisturbed(dipaco, config_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = dipaco(*arguments(config_file, folder))
    assert ended.code == 0, ended.err
    sentences = ("stays as it is", "routed again before phase 2", "re-routed every 8 tokens")
    for sentence in (*sentences, "the router for re-routing is the one after"):
        assert sentence in ended.err
    return folder


@pytest.mark.slow
def test_killed_again_and_again_it_ends_like_an_undisturbed_one(
    dipaco, config_file, undisturbed, tmp_path
):
    folder, command = tmp_path / "run", ("train", config_file, *SETS)
    killed_at_each(dipaco, command, folder, FAULTS, facts(undisturbed))
    assert report(folder) == report(undisturbed)


@pytest.mark.slow
def test_what_an_alternation_made_is_made_again_where_it_is_lost(
    dipaco, config_file, undisturbed, tmp_path
):
    folder = tmp_path / "run"
    ended = dipaco(*arguments(config_file, folder), fault=Fault("before record", "label", nth=4))
    assert ended.fired == "before record label", ended.err
    lost_label = names(folder, "SELECT name FROM labels ORDER BY path")[0]
    (folder / lost_label).unlink()
    # It is missed when the documents are routed; then a plan of the new shards is lost.
    fault = Fault("after record", "route")
    ended = dipaco(*arguments(config_file, folder), fault=fault)
    assert ended.fired == "after record route", ended.err
    assert (folder / lost_label).exists()
    (index,) = names(folder, "SELECT artifacts FROM stages WHERE stage = 'route' AND phase = 1")
    shards = json.loads((folder / json.loads(index)["shards"][0]).read_bytes())
    for plan, *_ in shards["plans"]:
        (folder / plan).unlink(missing_ok=True)
    ended = dipaco(*arguments(config_file, folder))
    assert ended.code == 0, ended.err
    assert (facts(folder)["modules"], report(folder)) == (
        facts(undisturbed)["modules"],
        report(undisturbed),
    )


def names(folder: Path, query: str) -> list[str]:
    return [name for (name,) in in_ledger(folder, query)]
