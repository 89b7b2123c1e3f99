"""What a run may switch on: with everything off it is Algorithm 1, and each switch by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.algorithm import algorithm1, variants
from dipaco.outer.config import OuterSettings
from dipaco.schedule.arm import Arm
from dipaco.topology import ModuleId
from tests.support.two_layers import (
    ADAMW,
    FLAT,
    GRID,
    PAPER,
    PHASES,
    PLAIN,
    PRIVATE,
    TAU,
    adamw_step,
    assert_close,
    batch_of,
    dense,
    digests,
    initial_parts,
    start,
    train_path,
)


class Schedule(Arm):
    """An arm of which a test says who takes part."""

    def __init__(self, take_part=None, **settings):
        object.__setattr__(self, "take_part", take_part)
        super().__init__(name="modular", total_steps=0, evaluate_every=1, **settings)

    def paths_in(self, phase):
        return super().paths_in(phase) if self.take_part is None else self.take_part(phase)


def train(
    topology,
    outer,
    *,
    documents=None,
    train_path=train_path,
    phases=PHASES,
    modules=None,
    takes=None,
    train_ahead=None,
    route=None,
    **settings,
):
    """All modules at the start and after each phase."""
    modules = modules or start(topology)
    documents = documents or [1] * topology.num_paths
    settings = {"has_outer_steps": True, "delay": outer.delay, **settings}
    arm = Schedule(topology=topology, phases=phases, **settings)
    route = route or (lambda phase, modules: variants.Shards(documents))
    others = {"takes": takes, "train_ahead": train_ahead}
    return [modules, *variants.train(arm, modules, train_path, route, outer=outer, **others)]


UNIT = OuterSettings(learning_rate=1.0, momentum=0.0)


def moves(path, phase, parts, _):
    """Two paths move their modules by -1 and -5."""
    return jax.tree.map(lambda w: w - (1.0, 5.0)[path], parts), None


@pytest.mark.parametrize("topology", [GRID, FLAT, PRIVATE, dense(1), dense(3)])
@pytest.mark.parametrize(
    "outer", [PAPER, PLAIN, OuterSettings()], ids=["diloco", "plain mean", "paper"]
)
def test_with_everything_off_every_module_at_every_phase_has_the_bits_of_algorithm_1(
    topology, outer
):
    documents = [3, 1, 4, 1][: topology.num_paths]
    modules = start(topology)
    expected = algorithm1.train(topology, modules, train_path, documents, PHASES, outer)
    got = train(topology, outer, documents=documents, modules=modules)
    assert [digests(m) for m in got[1:]] == [digests(m) for m in expected]


def test_without_an_outer_step_one_path_is_plain_adamw_over_all_phases():
    """How the base model and the dense baselines are trained."""
    after = train(dense(), PAPER, has_outer_steps=False)[-1][ModuleId("all", 0)]
    parts = initial_parts()
    state = ADAMW.init(parts)
    for step in range(TAU * PHASES):
        parts, state = adamw_step(parts, state, batch_of(0, step))
    assert_close(after, parts)


# --- path sampling, alternations ------------------------------------------------------------------


def test_sampling_all_paths_equals_no_sampling_and_a_half_does_not():
    without = train(GRID, PAPER)[-1]
    assert digests(train(GRID, PAPER, take_part=lambda _: range(4))[-1]) == digests(without)
    halves = train(GRID, PAPER, take_part=lambda phase: ((0, 3), (1, 2), (0, 1))[phase])[-1]
    assert digests(halves) != digests(without)


@pytest.mark.parametrize(("taking_part", "moved"), [((0,), 1.0), ((1,), 5.0), ((0, 1), 4 * 2**0.5)])
def test_weights_and_fan_in_are_of_the_paths_that_took_part(taking_part, moved):
    """They move the shared module by -1 and -5 and have 1 and 3 documents; roots 1 and 2."""

    others = {"documents": [1, 3], "phases": 1, "take_part": lambda _: taking_part}
    before, after = train(dense(2), UNIT, train_path=moves, **others)
    module = ModuleId("all", 0)
    got = before[module]["embed"]["w"] - after[module]["embed"]["w"]
    np.testing.assert_allclose(got, np.full((3, 4), moved), rtol=1e-5)


def test_a_module_without_a_path_in_a_phase_waits_with_its_momentum():
    """In a flat mixture, a path that sits out a phase ends where it would have, a phase later."""

    def by_own_count(path, phase, parts, carried):
        count, state = carried or (0, None)
        after, state = train_path(path, count, parts, state)
        return after, (count + 1, state)

    def take_part(phase):
        return (0, 2) if phase == 1 else (0, 1, 2)

    sampled = train(FLAT, PAPER, train_path=by_own_count, take_part=take_part, phases=3)
    without = train(FLAT, PAPER, train_path=by_own_count, phases=3)
    one, other = ModuleId("all", 1), ModuleId("all", 2)
    assert trees.digest(sampled[2][one]) == trees.digest(sampled[1][one])
    assert trees.digest(sampled[3][one]) == trees.digest(without[2][one])
    assert trees.digest(sampled[3][other]) == trees.digest(without[3][other])


def test_an_alternation_to_the_same_shards_changes_nothing_and_to_others_the_weights():
    asked = []

    def to(documents):
        def route(phase, modules):
            asked.append((phase, len(modules)))
            return variants.Shards(documents if phase == 2 else [3, 1, 4, 1])

        return {"route": route, "alternations": (2,)}

    without = train(GRID, PAPER, documents=[3, 1, 4, 1])
    same = train(GRID, PAPER, **to([3, 1, 4, 1]))
    assert [digests(m) for m in same] == [digests(m) for m in without]
    assert asked == [(0, 4), (2, 4)]
    others = train(GRID, PAPER, **to([1, 5, 9, 2]))
    assert [digests(m) == digests(n) for m, n in zip(others, without, strict=True)] == [
        *(True, True, True, False)
    ]


# --- quorum: contributions that are late ---------------------------------------------------------


def in_time(topology):
    """Every step takes the contributions of its own phase, all of them."""
    return lambda module, phase: [(phase, path) for path in topology.paths_through(module)]


def late(topology, taken):
    """The steps of the shared module take what `taken` says, step by step."""
    own = in_time(topology)
    return lambda module, step: taken[step] if module.level == "all" else own(module, step)


@pytest.mark.parametrize("topology", [GRID, FLAT, dense(3)])
def test_with_a_quorum_and_no_late_path_the_bits_are_those_without(topology):
    documents = [3, 1, 4, 1][: topology.num_paths]
    without = train(topology, PAPER, documents=documents)
    with_quorum = train(topology, PAPER, documents=documents, takes=in_time(topology))
    assert [digests(m) for m in with_quorum] == [digests(m) for m in without]


def test_a_late_contribution_moves_its_module_as_far_a_step_later():
    """Two paths move the shared module by -1 and -5 and have 1 and 3 documents: with the root of
    two, 0.25 * 1 and 0.75 * 5 times 1.41, whenever they come.
    """

    taken = [[(0, 0)], [(0, 1), (1, 0), (1, 1)]]
    phases = train(
        dense(2), UNIT, train_path=moves, documents=[1, 3], phases=2,
        takes=late(dense(2), taken),
    )  # fmt: skip
    module, root = ModuleId("all", 0), 2**0.5
    at = [modules[module]["embed"]["w"] for modules in phases]
    np.testing.assert_allclose(at[0] - at[1], np.full((3, 4), 0.25 * root), rtol=1e-4)
    np.testing.assert_allclose(at[1] - at[2], np.full((3, 4), (4.0 + 3.75) * root), rtol=1e-4)


def test_a_late_contribution_keeps_the_fan_in_of_its_own_phase():
    """Sampled: both paths go through phase 0 and path 0 through phase 1; then no path."""

    def moved(taking_part, taken):
        phases = train(
            dense(2), UNIT, train_path=moves, documents=[1, 3], phases=2,
            takes=late(dense(2), taken), take_part=lambda phase: taking_part[phase],
        )  # fmt: skip
        return [modules[ModuleId("all", 0)]["embed"]["w"][0, 0] for modules in phases]

    start, one, two = moved([(0, 1), (0,)], [[(0, 0)], [(0, 1), (1, 0)]])
    np.testing.assert_allclose(one - two, 0.75 * 5 * 2**0.5 + 1.0, rtol=1e-4)
    start, one, two = moved([(0, 1), ()], [[(0, 0)], [(0, 1)]])
    np.testing.assert_allclose([start - one, one - two], [0.25 * 2**0.5, 3.75 * 2**0.5], rtol=1e-4)


@pytest.mark.parametrize("codec_name", ["none", "int8", "int4", "int2"])
def test_a_path_that_is_late_trains_on_its_modules_without_what_it_sent(codec_name):
    """One shared module, two paths, the second late for the first step: as written out by hand."""
    from dipaco.outer.compress import codec_of, encode_contribution
    from dipaco.outer.gradient import WeightedMean, outer_gradient
    from dipaco.outer.step import first_outer_state, outer_step

    topology, module = dense(2), ModuleId("all", 0)
    taken = [[(0, 0)], [(0, 1), (1, 0), (1, 1)]]
    outer = dataclasses.replace(PAPER, codec=codec_name)
    codec = codec_of(outer)
    by_tasks = train(topology, outer, phases=2, takes=late(topology, taken))
    at, momentum = by_tasks[0][module], first_outer_state(outer, by_tasks[0][module])
    carried, residual, sent = [None, None], [None, None], {}
    for step in range(2):
        for path in range(2):
            after, carried[path] = train_path(path, step, dict(at), carried[path])
            gradient = outer_gradient(at, jax.device_get(after))
            message, residual[path] = encode_contribution(codec, gradient, residual[path])
            sent[step, path] = codec.decode(message, gradient)
        mean = WeightedMean()
        for key in taken[step]:
            mean.add(sent[key], 0.5)
        at, momentum, _ = outer_step(outer, dict(at), mean.take(), momentum, 2)
        assert trees.digest(at) == trees.digest(by_tasks[step + 1][module])


def test_early_stopping_releases_the_best_of_every_path_and_of_equals_the_first():
    history = [{m: {"w": np.float32(phase)} for m in FLAT.modules} for phase in range(4)]
    losses = [[5, 3, 4, 4], [2, 2, 2, 2], [9, 8, 7, 6]]

    def loss(path, parts):
        return losses[path][int(parts["w"])]

    def phases(**others):
        return [int(p["w"]) for p in variants.release(FLAT, history, loss, **others)]

    assert phases() == [1, 0, 3]
    assert phases(routed_at=2) == [2, 2, 3]
    losses = [[np.nan, 3, 2, 2], [2, np.nan, 1, np.nan], [np.nan] * 4]
    assert phases() == [2, 2, 0], "a loss that is no number is never better"
    assert phases(routed_at=1) == [2, 2, 1]


# --- delay: modules that paths take late ----------------------------------------------------------


def in_two_pieces(ahead_by):
    """A phase of `moves` as `TrainAhead`: what the steps before and after the merge add."""

    def adding(amount):
        def train(path, phase, parts, carried):
            return jax.tree.map(lambda w: w + np.float32(amount), parts), (carried or 0) + amount

        return train

    return variants.TrainAhead(adding(ahead_by), adding(1.0 - ahead_by))


def adds_one(path, phase, parts, carried):
    return jax.tree.map(lambda w: w + np.float32(1), parts), (carried or 0) + 1


@pytest.mark.parametrize(("alpha", "moved"), [(0.0, 1.5), (0.5, 1.75), (0.25, 1.625)])
def test_a_merge_keeps_its_share_of_the_steps_taken_ahead(alpha, moved):
    """One path, rate 1: the module becomes the path. The first phase adds 1. The second adds 0.5
    ahead, of which the merge keeps alpha, and 0.5 after it.
    """
    outer = OuterSettings(learning_rate=1.0, momentum=0.0, delay=1, delay_merge=alpha)
    others = {"train_path": adds_one, "phases": 2, "train_ahead": in_two_pieces(0.5)}
    before, _, after = train(dense(1), outer, **others)
    module = ModuleId("all", 0)
    got = after[module]["embed"]["w"] - before[module]["embed"]["w"]
    np.testing.assert_allclose(got, np.full((3, 4), moved), rtol=1e-5)


def test_a_path_goes_ahead_from_its_own_parameters_and_contributes_from_the_modules():
    """Two paths move the shared module by 1 and 3 in the first phase: it becomes 2, they are at 1
    and 3. Ahead they add nothing; merged by halves they are at 1.5 and 2.5, and stay: the mean of
    their differences from 2 is nothing. Without the last merge they would have gone on from 2.
    """

    def first(path, phase, parts, carried):
        return jax.tree.map(lambda w: w + np.float32((1, 3)[path]), parts), None

    seen = []

    def stays(path, phase, parts, carried):
        seen.append(float(parts["embed"]["w"][0, 0] - at_start))
        return parts, None

    outer = OuterSettings(
        learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False, delay=1, delay_merge=0.5
    )
    module = ModuleId("all", 0)
    modules = start(dense(2))
    at_start = modules[module]["embed"]["w"][0, 0]
    late = {"train_ahead": variants.TrainAhead(stays, stays), "phases": 2, "modules": modules}
    _, one, two = train(dense(2), outer, train_path=first, **late)
    np.testing.assert_allclose(seen, [1.0, 1.5, 3.0, 2.5], rtol=1e-5)
    assert_close(one[module], two[module])
    assert one[module]["embed"]["w"][0, 0] - at_start == pytest.approx(2.0, rel=1e-5)


def test_with_all_steps_after_the_merge_and_nothing_kept_a_delay_is_none():
    nothing = lambda path, phase, parts, carried: (parts, carried)  # noqa: E731
    outer = OuterSettings(delay=1, delay_merge=0.0)
    late = variants.TrainAhead(nothing, train_path)
    without = train(GRID, OuterSettings())
    assert [digests(m) for m in train(GRID, outer, train_ahead=late)] == [
        digests(m) for m in without
    ]


@pytest.mark.parametrize("why", ["it sat out a phase", "documents were routed again"])
def test_a_path_begins_with_its_modules_where(why):
    ahead = []

    def goes_ahead(path, phase, parts, carried):
        ahead.append((phase, path))
        return parts, carried

    others = {}
    if why == "it sat out a phase":
        others["take_part"] = lambda phase: ((0, 1, 2), (0, 2), (0, 1))[phase]
        expected = [(1, 0), (1, 2), (2, 0)]
    else:
        others["alternations"] = (2,)
        expected = [(1, 0), (1, 1), (1, 2)]
    late = variants.TrainAhead(goes_ahead, train_path)
    train(FLAT, OuterSettings(delay=1), train_ahead=late, phases=3, **others)
    assert ahead == expected
