"""Arms: which phases are evaluated, how inner steps are divided among phases; tasks as text."""

import itertools

import pytest

from dipaco.control.plan import Arm, one_path
from dipaco.control.tasks import PRIORITY, Task
from dipaco.topology import ModuleId


def arm(phases, total_steps=0, evaluate_every=1):
    return Arm(
        name="dense",
        topology=one_path(("embed",)),
        phases=phases,
        total_steps=total_steps,
        is_averaged=False,
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


def test_one_path_owns_everything_in_one_module():
    topology = one_path(("embed", "head"))
    assert topology.num_paths == 1
    assert topology.modules == (ModuleId("all", 0),)


def test_tasks_read_as_a_person_would_say_them():
    assert str(Task("train", "modular", "3", 2)) == "train modular path 3 phase 2"
    assert (
        str(Task("outer", "modular", "early/0001", 2)) == "outer modular module early/0001 phase 2"
    )
    assert str(Task("report")) == "report"
    assert Task("outer", "modular", "early/0001", 2).module == ModuleId("early", 1)


def test_what_is_nearer_to_a_result_is_more_urgent():
    assert PRIORITY["outer"] < PRIORITY["train"]
    assert PRIORITY["score"] < PRIORITY["evaluate"] < PRIORITY["train"] < PRIORITY["report"]
