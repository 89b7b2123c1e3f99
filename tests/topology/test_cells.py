"""Paths are divided among cells so that each holds few modules."""

import math

import pytest

from dipaco.topology import PER_PATH, Level, Topology
from dipaco.topology.cells import cells, listed, paths_in

SIZES = {"embed": 1, "a": 10, "b": 10, "c": 10}


def topology_of(*experts):
    levels = [
        Level(name=part, parts=(part,), experts=each)
        for part, each in zip("abc", experts, strict=False)
    ]
    return Topology(levels=(Level(name="stem", parts=("embed",)), *levels))


def modules_in(topology, paths):
    return {m for path in paths for m in topology.modules_of(path) if m.level != "stem"}


@pytest.mark.parametrize(
    ("experts", "number", "most_modules"),
    [((2, 2), 2, 3), ((16, 16), 16, 8), ((16, 16), 64, 4), ((4, 4, 4), 8, 6), ((8,), 4, 2)],
)
def test_cells_of_a_grid_are_tiles(experts, number, most_modules):
    topology = topology_of(*experts)
    divided = cells(topology, number, SIZES)
    assert {len(paths) for paths in divided} == {math.prod(experts) // number}
    assert {len(modules_in(topology, paths)) for paths in divided} == {most_modules}


@pytest.mark.parametrize("experts", [(3, 3), (5,), (2, 3, 2), (3, PER_PATH, 2), (1,)])
def test_any_number_of_cells_has_every_path_once(experts):
    topology = topology_of(*experts)
    for number in range(1, topology.num_paths + 1):
        divided = cells(topology, number, SIZES)
        assert len(divided) == number
        assert sorted(path for paths in divided for path in paths) == [*range(topology.num_paths)]
        assert all(divided)


def test_the_larger_level_is_cut_first():
    topology = topology_of(2, 2)
    assert cells(topology, 2, SIZES | {"b": 100}) == [(0, 2), (1, 3)]


def test_a_list_of_paths_is_read_as_it_is_written():
    assert listed((0, 1, 16, 17, 18, 40)) == "0-1,16-18,40"
    assert paths_in("0-1, 16-18,40") == (0, 1, 16, 17, 18, 40)
    for text in ("", "1-", "3-1", "-1", "0,,1", "a", "1.5"):
        with pytest.raises(ValueError, match="not a list of paths"):
            paths_in(text)
