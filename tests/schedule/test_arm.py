"""Arms: which phases are evaluated, how inner steps are divided among phases; tasks as text."""

import dataclasses
import itertools
from collections import Counter

import pytest

from dipaco.control.planning.tasks import PRIORITY, Task
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import one_path
from dipaco.topology import Level, ModuleId, Topology


def arm(phases, total_steps=0, evaluate_every=1):
    return Arm(
        name="dense",
        topology=one_path(("embed",)),
        phases=phases,
        total_steps=total_steps,
        has_outer_steps=False,
        evaluate_every=evaluate_every,
    )


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])]
)
def test_the_last_phase_is_evaluated_always_and_the_first_state_never(every, evaluated):
    assert [p for p in range(6) if arm(5, evaluate_every=every).is_evaluated(p)] == evaluated


@pytest.mark.parametrize(("phases", "steps"), [(1, 7), (3, 7), (4, 80), (5, 3), (3, 0)])
def test_phases_divide_the_steps_evenly_and_lose_none(phases, steps):
    starts = [arm(phases, steps).steps_before(phase) for phase in range(phases + 1)]
    sizes = [end - start for start, end in itertools.pairwise(starts)]
    assert (starts[0], starts[-1]) == (0, steps)
    assert max(sizes) - min(sizes) <= 1


DRAWN = [(0, 7), (5, 6), (2, 6)]  # of eight paths, two a phase, seed 0


def modular(**settings):
    grid = Topology(levels=(Level(name="all", parts=("embed",), experts=8),))
    changes = {"topology": grid, "total_steps": 12, **settings}
    return dataclasses.replace(arm(6), **changes)


def test_without_sampling_all_paths_take_part_and_with_nearly_all_of_them_too():
    for share in (1.0, 0.99):
        assert modular(path_share=share).paths_in(3) == tuple(range(8))


@pytest.mark.parametrize(("share", "paths"), [(0.5, 4), (0.25, 2), (0.01, 1)])
def test_the_share_of_paths_takes_part_and_differs_by_phase(share, paths):
    sampled = modular(path_share=share)
    drawn = [sampled.paths_in(phase) for phase in range(200)]
    assert {len(set(of_phase)) for of_phase in drawn} == {paths}
    assert all(list(of_phase) == sorted(of_phase) for of_phase in drawn)
    times = Counter(path for of_phase in drawn for path in of_phase)
    expected = 200 * paths / 8
    assert all(0.5 * expected < times[path] < 1.7 * expected for path in range(8))
    assert sampled.path_steps == 6 * 2 * paths


def test_which_paths_take_part_depends_on_seed_and_phase_only():
    assert [modular(path_share=0.25).paths_in(phase) for phase in range(3)] == DRAWN
    assert modular(path_share=0.25, seed=1).paths_in(0) != DRAWN[0]


def test_a_path_continues_from_the_last_phase_that_it_took_part_in():
    sampled = modular(path_share=0.25)
    for path in range(8):
        took_part = [phase for phase in range(20) if path in sampled.paths_in(phase)]
        for before, after in itertools.pairwise([None, *took_part]):
            assert sampled.trained_before(path, after) == before


def test_shards_are_those_of_the_last_alternation():
    assert [modular(alternations=(2, 5)).routed_at(phase) for phase in range(7)] == [
        *(0, 0, 2, 2, 2, 5, 5)
    ]


def test_a_task_prints_as_a_phrase():
    assert str(Task("train", "modular", "3", 2)) == "train modular path 3 phase 2"
    assert (
        str(Task("outer", "modular", "early/0001", 2)) == "outer modular module early/0001 phase 2"
    )
    assert str(Task("report")) == "report"
    assert str(Task("route")) == "route"
    assert str(Task("route", phase=3)) == "route phase 3"
    assert str(Task("check", "modular", "3", 2)) == "check modular path 3 phase 2"
    assert Task("outer", "modular", "early/0001", 2).module == ModuleId("early", 1)


def test_tasks_nearer_to_a_result_are_more_urgent():
    assert PRIORITY["outer"] < PRIORITY["train"]
    assert PRIORITY["score"] < PRIORITY["evaluate"] < PRIORITY["train"] < PRIORITY["report"]
