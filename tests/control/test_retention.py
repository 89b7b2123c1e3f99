"""Retention: objects are superseded when no fact and no redo needs them; on both databases."""

import dataclasses

import pytest
from support.made_up_facts import ready, receipt, trained

from dipaco.control.facts.recording import record
from dipaco.schedule.plan import BASE
from dipaco.topology import ModuleId


@pytest.mark.parametrize("keep", [1, 2])
def test_contributions_are_superseded_once_their_module_has_stepped(finished, plan, keep):
    """With two phases kept, the last are there: should the module's bytes be damaged, they make it
    again.
    """
    module = ModuleId("early", 1)
    paths = plan.arm("modular").topology.paths_through(module)
    names = {
        phase: [receipt("message", module, phase, path).name for path in paths] for phase in (0, 1)
    }
    left = {
        at: finished.retention.superseded_contributions(plan.arm("modular"), module, at, keep)
        for at in (1, 2)
    }
    assert left == {at: names.get(at - keep, []) for at in (1, 2)}
    live = finished.retention.live_names(snapshots=1, contributions=keep)
    assert live.issuperset(names[1]) == (keep == 2)
    assert live.isdisjoint(names[0])


def test_an_object_of_a_module_is_superseded_only_if_no_other_fact_names_it(finished):
    module = ModuleId("all", 0)
    assert finished.retention.superseded_modules("dense", module, 1, 3) == [
        receipt("dense", module, 1).name,
        receipt("state", "dense", module, 1).name,
    ]
    shared = ready("dense", module, 9)
    parameters = receipt("dense", module, 1)
    with finished._database.transaction():
        record(finished._database, dataclasses.replace(shared, parameters=parameters))
    assert finished.retention.superseded_modules("dense", module, 1, 3) == [
        receipt("state", "dense", module, 1).name
    ]


def test_an_object_of_phases_in_which_its_module_did_not_step_goes_with_the_last(finished):
    module, name = ModuleId("all", 0), receipt("dense", ModuleId("all", 0), 7)
    with finished._database.transaction():
        for phase in (7, 8, 9):
            fact = dataclasses.replace(ready("dense", module, phase), parameters=name)
            record(finished._database, dataclasses.replace(fact, outer_state=None))
    superseded = finished.retention.superseded_modules
    assert superseded("dense", module, 8, 9, since=-1) == [], "the next phase has it"
    assert superseded("dense", module, 9, 9) == [], "an earlier one has it, which may be released"
    assert superseded("dense", module, 9, 9, since=7) == []
    assert superseded("dense", module, 9, 9, since=6) == [name.name]
    assert superseded("dense", module, 9, 10, since=6) == [], "the run went back since"


def test_the_last_two_snapshots_of_a_path_are_kept_however_far_apart(ledger):
    for phase in (0, 3, 4, 9):
        record(ledger._database, trained("modular", 0, phase))
    old, *last_two = (receipt("snapshot", "modular", 0, phase).name for phase in (3, 4, 9))
    assert ledger.retention.superseded_snapshots("modular", 0, 9, 2) == [old]
    assert ledger.retention.live_names(snapshots=2, contributions=2) == set(last_two)


def test_a_finished_run_keeps_releases_its_base_model_and_one_arm_at_every_phase(finished, plan):
    topology, dense = plan.arm("modular").topology, ModuleId("all", 0)
    modular = {
        receipt("modular", module, phase).name for module in topology.modules for phase in (0, 1, 2)
    }
    states = {receipt("state", "modular", module, 2).name for module in topology.modules}
    released = {receipt("dense", dense, phase).name for phase in (2, 3)}
    base = {receipt(BASE, dense, 2).name}
    keep = finished.retention.modules_of_finished(plan, "modular", states=1)
    assert keep == modular | states | released | base
    newest = {receipt("modular", module, 2).name for module in topology.modules}
    newest |= {receipt("dense", dense, 3).name} | base
    assert finished.retention.released(plan, is_newest_only=True) == newest
    of_base = {receipt("snapshot", BASE, 0, phase).name for phase in (0, 1)}
    live = {
        but: finished.retention.live_names(snapshots=2, contributions=0, but=but)
        for but in ("", BASE)
    }
    assert live[""] - live[BASE] == of_base


def do_again(ledger, kind, arm, subject, phase):
    with ledger._database.transaction():
        of = {"kind": kind, "arm": arm, "subject": subject, "phase": phase}
        assert ledger._database.change("redo_task", **of) == 1


def test_what_a_step_takes_that_is_made_again_is_not_superseded(finished, plan):
    module = ModuleId("early", 1)
    paths = plan.arm("modular").topology.paths_through(module)
    names = {receipt("message", module, 0, path).name for path in paths}
    modular, superseded = plan.arm("modular"), finished.retention.superseded_contributions
    assert names == {*superseded(modular, module, 1, 1)}
    do_again(finished, "outer", "modular", str(module), 0)
    assert superseded(modular, module, 1, 1) == []
    assert names <= finished.retention.live_names(snapshots=1, contributions=1)
    other = ModuleId("early", 0)
    assert superseded(modular, other, 1, 1), "no other module's step is made again"


def test_what_a_path_begins_from_that_trains_again_is_not_superseded(finished):
    name = receipt("snapshot", "dense", 0, 0).name
    assert finished.retention.superseded_snapshots("dense", 0, 2, 2) == [name]
    do_again(finished, "train", "dense", "0", 1)
    assert finished.retention.superseded_snapshots("dense", 0, 2, 2) == []
    assert name in finished.retention.live_names(snapshots=1, contributions=1)
