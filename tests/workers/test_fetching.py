"""Modules that are fetched as the contributions of other paths: the same bits in fewer bytes, and
whole where that is not possible.
"""

import logging
import random

import pytest
from support.memory_bucket import Machines
from support.smallest_run import SHARINGS

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.topology import Topology
from dipaco.workers import fetching, replay
from tests.workers.conftest import CONFIG, changed


def config_with(sharing="2x2", *, phases=3, keep=2, **outer):
    return changed(
        CONFIG,
        topology=Topology(levels=SHARINGS[sharing]),
        phases=phases,
        outer={"codec": "int8", **outer},
        retention={"contributions": keep},
        evaluation={"every_phases": phases},
    )


@pytest.fixture
def machines(begin, tmp_path):
    def of(config):
        return Machines(begin(config), tmp_path / "machines")

    return of


def trained_rows(run):
    rows = run.ledger._database._connection.execute(
        "SELECT path, phase, bytes_down FROM trained WHERE arm = 'modular'"
    )
    return {(path, phase): num_bytes for path, phase, num_bytes in rows}


def whole_bytes(run, path, phase):
    arm = run.plan.arm(MODULAR)
    return sum(
        run.ledger.facts.module(MODULAR, module, phase).parameters.num_bytes
        for module in arm.topology.modules_of(path)
    )


def test_every_module_has_the_bits_of_algorithm_1_and_paths_fetch_as_many_bytes_as_is_recorded(
    machines,
):
    config = config_with(vocabulary_rows="holders", path_share=0.75, phases=4, keep=None)
    on = machines(config)
    on.work_until(config.phases)
    assert replay.differences(on.executor.run) == []
    recorded = trained_rows(on.run)
    fetched = on.down("modules") + on.down("outer_states") + on.down("contributions")
    assert fetched == sum(recorded.values())
    arm = on.run.plan.arm(MODULAR)
    later = {key: n for key, n in recorded.items() if arm.trained_before(*key) is not None}
    assert later
    whole = sum(whole_bytes(on.run, *key) for key in later)
    assert sum(later.values()) < 0.9 * whole


def test_a_path_fetches_the_messages_of_the_others_and_no_module_after_its_first_phase(machines):
    on = machines(config_with())
    on.work_until(1)
    before = {kind: on.down(kind) for kind in ("modules", "outer_states", "contributions")}
    assert before["contributions"] == before["outer_states"] == 0
    on.work_until(3)
    assert on.down("modules") == before["modules"]
    assert on.down("outer_states") == 0
    facts = on.run.ledger.facts
    others = sum(
        contribution.message.num_bytes
        for module in on.run.config.topology.modules
        for phase in (0, 1)
        for contribution in facts.contributions(MODULAR, module, phase)
    )
    assert on.down("contributions") == others  # fan-in 2: each contribution has one other path


def test_where_contributions_are_as_many_bytes_every_module_is_fetched_whole(machines):
    on = machines(config_with(codec="none", phases=2))
    on.work_until(2)
    assert on.down("contributions") == 0
    for (path, phase), num_bytes in trained_rows(on.run).items():
        assert num_bytes == whole_bytes(on.run, path, phase)


def test_a_step_with_late_contributions_is_computed_as_it_was_taken(machines):
    config = config_with("diloco", quorum=0.5, grace_seconds=0.0, vocabulary_rows="holders", keep=3)
    on = machines(config)
    dice = lambda task: (  # noqa: E731
        task.kind == "train" and task.arm == MODULAR and random.Random(str(task)).random() < 0.4
    )
    on.work_until(3, is_late=dice)
    assert on.run.ledger.quorums.late(MODULAR)
    assert replay.differences(on.executor.run) == []
    assert on.down("contributions")


@pytest.mark.parametrize(("phases", "fetches_state"), [(4, True), (3, False)])
def test_a_newcomer_fetches_whole_and_then_the_outer_state_if_that_pays(
    machines, phases, fetches_state
):
    on = machines(config_with(phases=phases))
    on.work_until(1)
    on.of_path[0] = newcomer = on.new("newcomer")
    on.work_until(2)
    down = newcomer.bucket.down
    assert (down["modules"], down["contributions"]) == (whole_bytes(on.run, 0, 1), 0)
    on.work_until(phases)
    assert bool(down["contributions"]) == bool(down["outer_states"]) == fetches_state
    later = () if fetches_state else range(2, phases)
    assert down["modules"] == sum(whole_bytes(on.run, 0, phase) for phase in (1, *later))
    assert replay.differences(on.executor.run) == []


@pytest.mark.parametrize("damage", ["of messages", "another machine's bits"])
def test_what_cannot_be_computed_is_fetched_whole_and_that_is_said(
    machines, damage, caplog, monkeypatch
):
    on = machines(config_with())
    on.work_until(1)
    if damage == "of messages":
        for name in [name for name in on.content if name.startswith("objects/messages")]:
            if "/early/" in name:
                del on.content[name]
            else:
                on.content[name] = on.content[name][:-1] + b"\0"
    else:
        real = fetching.stepped_module

        def other_bits(*arguments):
            stepped = real(*arguments)
            _, leaf = next(trees.flatten(stepped.after))
            leaf += 1
            return stepped

        monkeypatch.setattr(fetching, "stepped_module", other_bits)
    with caplog.at_level(logging.WARNING, "dipaco"):
        on.work_until(3)
    said = [record.message for record in caplog.records if "is fetched whole" in record.message]
    # Those of each machine are other bits once; a message is missed by both paths of its module.
    assert len(said) == (4 if damage == "another machine's bits" else 8)
    assert replay.differences(on.executor.run) == []
