"""How long a step waits for late contributions, from how long earlier ones took: the rule, what
the ledger keeps of it, and that it is better than a fixed grace of as much time.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.slow_spells import World, simulate, total, work_end

from dipaco.control.grace import AdaptiveGrace, GracePeriod, grace_after
from tests.control.conftest import do_until
from tests.control.test_quorums import EARLY, claim_all, do, quorum_plan  # noqa: F401 (fixture)

SETTINGS = AdaptiveGrace(deviations=3.0, margin=0.15)
EARLIER = [98.0, 99.0, 100.0, 101.0, 102.0, 500.0]  # median 100.5, deviation 1.5


def test_it_ends_at_the_median_and_three_deviations_or_the_margin_beyond_it():
    wide = SETTINGS._replace(margin=0.0)
    assert grace_after(101.0, EARLIER, [100.0], wide, 60.0) == GracePeriod(4.0, 100.5, 1.5)
    assert grace_after(100.0, EARLIER, [], SETTINGS, 60.0).seconds == pytest.approx(15.575)


def test_one_that_took_five_times_as_long_changes_nothing():
    assert grace_after(100.0, EARLIER, [], SETTINGS, 60.0) == grace_after(
        100.0, [*EARLIER[:-1], 103.0], [], SETTINGS, 60.0
    )


def test_where_this_phase_is_slow_for_all_it_counts_from_those_that_are_in():
    slow = grace_after(205.0, EARLIER, [200.0, 205.0], SETTINGS, 60.0)
    assert slow.seconds == pytest.approx(202.5 + 15.075 - 205.0)


def test_it_is_over_where_the_module_has_waited_for_longer_already():
    assert grace_after(400.0, EARLIER, [100.0, 400.0, 99.0], SETTINGS, 60.0).seconds == 0.0


@pytest.mark.parametrize("earlier", [[], [100.0], [100.0, 101.0]])
def test_with_few_contributions_it_is_as_long_as_may_be(earlier):
    assert grace_after(1.0, earlier, [1.0], SETTINGS, 60.0) == GracePeriod(60.0)


SECONDS = st.floats(0.0, 1e6)


@given(SECONDS, st.lists(SECONDS), st.lists(SECONDS, max_size=4), st.floats(0.0, 100.0))
def test_it_is_never_negative_nor_longer_than_it_may_be(waited, earlier, present, most):
    assert 0.0 <= grace_after(waited, earlier, present, SETTINGS, most).seconds <= most


@given(st.lists(SECONDS, min_size=3), SECONDS, st.floats(0.1, 10.0))
def test_times_that_are_all_so_many_times_as_long_give_a_grace_as_many_times_as_long(
    earlier, waited, factor
):
    one = grace_after(waited, earlier, [], SETTINGS, 1e9).seconds
    other = grace_after(waited * factor, [s * factor for s in earlier], [], SETTINGS, 1e9).seconds
    assert other == pytest.approx(one * factor, rel=1e-6, abs=1e-3)


# --- in the ledger, on both databases ---------------------------------------------------------


@pytest.fixture
def adaptive(ledger, quorum_plan):  # noqa: F811
    """(ledger, plan, the claim of path 0): all have finished two phases, and all but path 0 the
    third; waits are as a test sets them.
    """
    (arm,) = quorum_plan.arms
    arm = dataclasses.replace(
        arm, phases=4, total_steps=40, evaluate_every=4, adaptive_grace=SETTINGS
    )
    plan = dataclasses.replace(quorum_plan, arms=(arm,))
    first = do_until(ledger, plan, "train")
    do(ledger, plan, first)
    while claims := claim_all(ledger):
        path_0 = claims.pop("train modular path 0 phase 2", None)
        if path_0 is not None:
            set_waits(ledger)
        for claim in claims.values():
            do(ledger, plan, claim)
        if path_0 is not None:
            return ledger, plan, path_0
    raise AssertionError("path 0 did not come to phase 2")


def set_waits(ledger):
    """Each contribution so far took a hundred seconds; modules began to wait 50 s ago."""
    with ledger._database.transaction():
        ledger._database._connection.execute("UPDATE arrivals SET seconds = 100")
        ledger._database._connection.execute("UPDATE graces SET since = since - 50")


def test_the_ledger_keeps_what_each_grace_follows_from(adaptive):
    ledger, _, _ = adaptive
    decided = ledger.quorums.graces("modular")
    assert decided[EARLY, 0].grace == GracePeriod(3600.0)  # of the first phase: nothing is known
    of_phase = decided[EARLY, 2]
    assert of_phase.quorum_seconds >= 50.0
    # A single deviation of none, so the margin counts: 15 s beyond the median.
    assert of_phase.grace.median_seconds == 100.0
    assert of_phase.grace.deviation_seconds == 0.0
    assert of_phase.grace.seconds == pytest.approx(115.0 - of_phase.quorum_seconds)
    waiting = {at.module: at.seconds_left for at in ledger.quorums.in_grace("modular")}
    assert waiting[EARLY] <= of_phase.grace.seconds
    assert ledger.quorums.graces("modular", newest=True)[EARLY, 2] == of_phase
    assert (EARLY, 0) not in ledger.quorums.graces("modular", newest=True)


def test_it_is_decided_once(adaptive):
    ledger, plan, path_0 = adaptive
    before = ledger.quorums.graces("modular")
    set_waits(ledger)
    do(ledger, plan, path_0)
    assert ledger.quorums.graces("modular") == before


def test_a_wait_that_began_by_another_clock_does_not_count(adaptive):
    ledger, plan, path_0 = adaptive
    with ledger._database.transaction():
        ledger._database._connection.execute("DELETE FROM arrivals WHERE phase = 2")
        ledger._database._connection.execute("UPDATE graces SET epoch = 'before'")
    do(ledger, plan, path_0)
    rows = ledger._database.rows("arrivals", arm="modular", module=str(EARLY), first=2, last=2)
    assert rows == []


# --- on a virtual clock -----------------------------------------------------------------------

SEEDS = (0, 1)


def runs(folder, world, seconds, settings=None):
    outcomes = []
    for seed in SEEDS:
        place = folder / f"{seed} {seconds} {settings}"
        place.mkdir()
        at = dataclasses.replace(world, seed=seed)
        outcomes.append(simulate(at, place, grace_seconds=seconds, adaptive=settings))
    return total(outcomes)


@pytest.mark.parametrize(
    ("spread", "fixed_seconds"),
    [pytest.param(0.15, 22.0, id="unlike machines"), pytest.param(0.0, 15.0, id="like machines")],
)
def test_with_a_worker_five_times_slower_at_times_fewer_are_late_than_with_a_fixed_grace(
    tmp_path, spread, fixed_seconds
):
    """The fixed grace is the one that takes as much time, found afterwards for these machines; the
    adaptive one has the same settings for both.
    """
    world = World(seed=0, spread=spread)
    adaptive = runs(tmp_path, world, 60.0, SETTINGS)
    fixed = runs(tmp_path, world, fixed_seconds)
    assert adaptive["of_median"] <= 1.2
    assert adaptive["phase_seconds"] <= fixed["phase_seconds"] * 1.002
    assert 0 < adaptive["late"] < fixed["late"]
    assert adaptive["contributions"] == fixed["contributions"]


def test_work_in_a_slow_spell_takes_five_times_as_long():
    assert work_end(0.0, 10.0, []) == 10.0
    assert work_end(0.0, 10.0, [(5.0, 100.0)]) == 30.0
    assert work_end(0.0, 10.0, [(5.0, 15.0)]) == 18.0
    assert work_end(20.0, 10.0, [(5.0, 15.0), (40.0, 50.0)]) == 30.0
