"""What each volunteer has done, from the ledger alone."""

import pytest

from dipaco.control.members.leaderboard import leaderboard
from dipaco.control.members.swarms import GroupStep


def test_samples_count_by_name_over_paths_and_sessions(ledger):
    swarms = ledger.swarms
    assert leaderboard(swarms, 16) == []
    for name, role in (("ana", "volunteer"), ("bo", "volunteer"), ("backbone-0", "backbone")):
        swarms.issue(f"of {name}", name, role, 1e12)
    swarms.issue("another of ana", "ana", "volunteer", 1e12)

    def step(path, number, **blocks):
        of = {name.replace("_", "/"): counts for name, counts in blocks.items()}
        swarms.put_step("modular", path, GroupStep(number, "s", 1.0, 9.0, 1.0, of))

    for path in (0, 1):
        computes = {"does": "computes", "samples_per_second": 2.5}
        waits = {"does": "waits", "samples_per_second": 1.0}
        peers = {"bo/3": waits, "bo/4": computes, "bo/5": computes}
        swarms.put_status("modular", path, "w", {"peers": peers if path else {}})
    step(0, 0, ana_1=[0, 1], bo_1=[2], **{"backbone-0_1": [3]})
    step(0, 1, ana_2=[0, 1, 2, 3], bo_2=[])
    step(1, 0, bo_3=[0, 1, 2, 3])
    step(1, 0, bo_3=[0, 1], ana_3=[2, 3])  # it was lost, and taken again
    first, second = leaderboard(swarms, 16)
    ledger._database._connection.execute("DELETE FROM swarm_steps")
    assert leaderboard(swarms, 16) == [first, second], "it reads no steps, which are many"
    assert (first.place, first.name, first.samples, first.steps) == (1, "ana", 8 + 16 + 8, 3)
    assert (first.paths, first.is_here) == ((0, 1), False)
    assert (second.place, second.name, second.samples, second.steps) == (2, "bo", 4 + 8, 2)
    assert (first.does, first.samples_per_second) == ("", 0.0)
    assert second.is_here
    assert (second.does, second.samples_per_second) == ("computes, waits", 6.0)
    assert first.share + second.share == 1.0


def test_each_local_step_counts(ledger):
    ledger.swarms.issue("of ana", "ana", "volunteer", 1e12)
    for steps in (3, 2):  # it was lost, and taken again with fewer
        blocks = {"ana/1": [0], "backbone-0/1": [1]}
        step = GroupStep(0, "s", 1.0, 9.0, 1.0, blocks, steps=steps)
        ledger.swarms.put_step("modular", 0, step)
    assert ledger.swarms.steps("modular", 0) == [step]
    (ana,) = leaderboard(ledger.swarms, 16)
    assert (ana.steps, ana.samples) == (2, 16)


@pytest.mark.parametrize(
    "session", ["ana/1", "René/é", "a/b/c", "a//x", "noslash", "/x", "a\nb/c\nd"]
)
def test_a_step_counts_for_who_holds_its_session_whatever_that_is_called(ledger, session):
    step = GroupStep(0, "s", 1.0, 9.0, 1.0, {session: [0, 1], "other/1": [2]})
    ledger.swarms.put_step("modular", 0, step)
    shares = {one.name: (one.blocks, one.out_of) for one in ledger.swarms.shares()}
    assert shares == {session.rpartition("/")[0]: (2, 3), "other": (1, 3)}


def test_equal_ones_share_a_place(ledger):
    for name in ("ana", "bo", "cy"):
        ledger.swarms.issue(name, name, "volunteer", 1e12)
    ledger.swarms.put_status("modular", 0, "w", {"peers": {}})
    blocks = {"cy/1": [0], "ana/1": [1, 2], "bo/1": [3, 4]}
    ledger.swarms.put_step("modular", 0, GroupStep(0, "s", 1.0, 9.0, 1.0, blocks))
    assert [(one.place, one.name) for one in leaderboard(ledger.swarms, 5)] == [
        (1, "ana"), (1, "bo"), (3, "cy"),
    ]  # fmt: skip
