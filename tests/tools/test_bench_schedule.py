"""The virtual clock in its small form: preempted and killed, everything is done once, and the
overhead is that of what was lost.
"""

import json

import bench_schedule
import pytest


@pytest.fixture
def simulate(monkeypatch, capsys):
    def run(*dials):
        monkeypatch.setattr("sys.argv", ["bench_schedule.py", *dials])
        bench_schedule.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.parametrize(
    ("dials", "most"),
    [
        (["--preempt-every", "1e12"], 0.0),  # none is: then no time is lost between tasks
        (["--preempt-every", "900"], 0.15),  # saved part-way: what costs is loading it again
        (["--preempt-every", "900", "--killed-share", "1"], 2.5),  # a lease, and all over again
    ],
    ids=["undisturbed", "preempted", "killed"],
)
def test_every_path_goes_through_every_phase_once_and_loses_no_more_than_it_must(
    simulate, dials, most
):
    answer = simulate("--grid", "4", "--phases", "3", "--workers", "32", *dials)
    assert answer["tasks"] == 3 + 3 * (16 + 25)
    assert 0 <= answer["overhead"] <= most
    happened = answer["preempted"] + answer["killed"]
    assert bool(happened) == (most > 0)
    # A lease that ends, or a late task that another worker had finished before that.
    assert bool(answer["killed"]) == bool(answer["lost"])
    assert answer["lost"] <= answer["killed"]


@pytest.mark.slow
def test_the_paper_s_256_paths_under_preemption_stay_near_the_ideal_schedule(simulate):
    answer = simulate("--phases", "2")
    assert (answer["paths"], answer["modules"], answer["workers"]) == (256, 289, 512)
    assert answer["preempted"] > 5
    assert answer["overhead"] < 0.10
    asked = {"work_summary", "heartbeat", "silent workers", "overdue tasks"}
    assert asked <= answer["calls"].keys()
    # 512 workers, of which half are idle: a heartbeat in 15 s, a work summary in 1.9 s at most.
    assert answer["calls"]["heartbeat"] >= 0.9 * 512 * answer["virtual_seconds"] / 15
    assert answer["calls"]["work_summary"] >= 0.9 * 250 * answer["virtual_seconds"] / 1.9
