"""`assemble` and `dissect` are inverse for every topology."""

from hypothesis import given
from hypothesis import strategies as st

from dipaco.topology import Level, Topology, assemble, dissect


@st.composite
def topologies(draw):
    """Any division of some parts among levels; levels shared, per path, of experts, or empty."""
    owners = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    return Topology(
        levels=tuple(
            Level(
                name=f"level_{number}",
                parts=tuple(f"part_{i}" for i, owner in enumerate(owners) if owner == number),
                experts=draw(st.integers(0, 4)),
            )
            for number in range(4)
        )
    )


@given(topologies(), st.data())
def test_assembling_dissected_parts_gives_the_same_parts(topology, data):
    path = data.draw(st.integers(0, topology.num_paths - 1))
    names = [part for level in topology.levels for part in level.parts]
    parts = {name: object() for name in sorted(names)}
    modules = dissect(parts, topology, path)
    assert tuple(modules) == topology.modules_of(path)
    assert assemble(modules, topology.modules_of(path)) == parts


@given(topologies())
def test_fan_in_sums_to_the_number_of_paths_over_the_experts_of_each_level(topology):
    sums = dict.fromkeys((level.name for level in topology.levels if level.parts), 0)
    for module in topology.modules:
        assert topology.fan_in(module) == len(topology.paths_through(module)) > 0
        sums[module.level] += topology.fan_in(module)
    assert set(sums.values()) == {topology.num_paths}


def test_a_path_is_the_union_of_its_modules_in_sorted_order():
    topology = Topology(
        levels=(
            Level(name="late", parts=("head", "block_01"), experts=2),
            Level(name="early", parts=("embed",)),
        )
    )
    values = {m: {part: f"{m}:{part}" for part in topology.parts_of(m)} for m in topology.modules}
    parts = assemble(values, topology.modules_of(1))
    assert list(parts.items()) == [
        ("block_01", "late/0001:block_01"),
        ("embed", "early/0000:embed"),
        ("head", "late/0001:head"),
    ]
