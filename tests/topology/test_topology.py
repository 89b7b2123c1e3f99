"""From levels to paths and modules: counts, numbering, fan-in, and what is refused."""

import time

import pytest

from dipaco.topology import PER_PATH, SHARED, Level, ModuleId, Topology, blocks
from dipaco.topology.errors import BadTopology, PartOwnedTwice, PartUnowned, UnknownPart

TWELVE_BLOCKS = ("embed", *blocks(0, 11), "final_norm", "head")


def grid(early: int, late: int, **private) -> Topology:
    return Topology(
        levels=(
            Level(name="early", parts=("embed", "block_00"), experts=early),
            Level(name="late", parts=("block_01", "head"), experts=late),
            *(Level(name=name, parts=parts, experts=PER_PATH) for name, parts in private.items()),
        )
    )


def test_blocks_are_named_with_both_ends():
    assert blocks(9, 11) == ("block_09", "block_10", "block_11")
    assert blocks(9) == ("block_09",)


def test_the_last_level_with_a_choice_changes_fastest():
    topology = grid(2, 3)
    assert topology.choices == (2, 3)
    assert [tuple(m.expert for m in topology.modules_of(path)) for path in range(6)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip


def test_paths_through_a_module_are_those_that_are_made_of_it():
    topology = grid(2, 3, own=("final_norm",))
    assert topology.paths_through(ModuleId("early", 1)) == (3, 4, 5)
    assert topology.paths_through(ModuleId("late", 2)) == (2, 5)
    assert topology.paths_through(ModuleId("own", 4)) == (4,)
    for path in range(topology.num_paths):
        assert all(path in topology.paths_through(m) for m in topology.modules_of(path))


def test_sixteen_by_sixteen_with_private_parts_is_256_paths_and_289_modules_built_quickly():
    """DiPaCo section 4: embedding and blocks 0, 5, 6, 11 belong to one path each."""
    private = ("embed", "block_00", "block_05", "block_06", "block_11")
    started = time.process_time()
    topology = Topology(
        levels=(
            Level(name="own", parts=private, experts=PER_PATH),
            Level(name="early", parts=blocks(1, 4), experts=16),
            Level(name="late", parts=blocks(7, 10), experts=16),
            Level(name="common", parts=("final_norm", "head"), experts=SHARED),
        )
    )
    topology.check_owns(TWELVE_BLOCKS)
    fan_ins = [topology.fan_in(module) for module in topology.modules]
    assert all(len(topology.modules_of(path)) == 4 for path in range(topology.num_paths))
    assert time.process_time() - started < 0.5
    assert topology.num_paths == 256
    assert len(topology.modules) == 256 + 16 + 16 + 1
    assert fan_ins == [1] * 256 + [16] * 32 + [256]


def test_an_empty_level_multiplies_paths_and_has_no_modules():
    """DiLoCo with 8 replicas."""
    topology = Topology(
        levels=(Level(name="all", parts=("embed", "head")), Level(name="replica", experts=8))
    )
    assert topology.num_paths == 8
    assert topology.modules == (ModuleId("all", 0),)
    assert topology.fan_in(ModuleId("all", 0)) == 8
    assert topology.modules_of(7) == (ModuleId("all", 0),)


def test_one_level_that_owns_everything_is_a_flat_mixture():
    topology = Topology(levels=(Level(name="all", parts=("embed", "head"), experts=5),))
    assert [topology.modules_of(path) for path in range(5)] == [
        (ModuleId("all", path),) for path in range(5)
    ]


def test_without_a_choice_there_is_one_path():
    topology = Topology(
        levels=(Level(name="a", parts=("embed",)), Level(name="b", parts=("head",), experts=0))
    )
    assert topology.num_paths == 1
    assert topology.choices == ()
    assert topology.modules_of(0) == (ModuleId("a", 0), ModuleId("b", 0))


def test_a_part_that_no_level_owns_is_named_with_what_levels_own():
    with pytest.raises(PartUnowned, match=r"`final_norm`.*early = embed, block_00; late"):
        grid(2, 2).check_owns(("embed", "block_00", "block_01", "final_norm", "head"))


def test_a_part_that_two_levels_own_is_named_with_both():
    with pytest.raises(PartOwnedTwice, match="`head` is owned by level `late` and by level `own`"):
        grid(2, 2, own=("head",))


def test_a_part_that_the_model_lacks_is_named_with_those_it_has():
    with pytest.raises(UnknownPart, match=r"`late` owns `head`.*embed, block_00, block_01\."):
        grid(2, 2).check_owns(("embed", "block_00", "block_01"))


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        (lambda: (), "at least one level"),
        (lambda: (Level(name="a"),), "No level owns any part"),
        (lambda: (Level(name="a", parts=("embed",)), Level(name="a")), "Two levels are called `a`"),
        (lambda: (Level(name="A", parts=("embed",)),), "`A` cannot name a level"),
        (lambda: (Level(name="a/b", parts=("embed",)),), "cannot name a level"),
        (lambda: (Level(name="a" * 65, parts=("embed",)),), "64 at most"),
        (lambda: (Level(name="a", parts=("embed",), experts=-1),), "has -1 experts"),
        (lambda: (Level(name="a", parts=("embed", "embed")),), "names a part twice"),
    ],
)
def test_an_invalid_topology_is_refused(levels, problem):
    with pytest.raises(BadTopology, match=problem):
        Topology(levels=levels())
