"""A run that starts from the modules of another has paths that were paths there, or is refused."""

import pytest

from dipaco.topology import PER_PATH, Level, ModuleId, Topology
from dipaco.workers.errors import CannotStartFrom
from dipaco.workers.origin_modules import sources_of

EARLY, LATE = ("embed", "block_00"), ("block_01", "head")


def levels(*given):
    """Of (name, parts, experts), in this order."""
    return Topology(levels=tuple(Level(name=n, parts=p, experts=e) for n, p, e in given))


def flat(experts):
    return levels(("all", EARLY + LATE, experts))


def grid(early, late):
    return levels(("early", EARLY, early), ("late", LATE, late))


REPLICAS = levels(("all", EARLY + LATE, 1), ("replica", (), 4))
PRIVATE_LATE = levels(("early", EARLY, 4), ("late", LATE, PER_PATH))
SHARED_EARLY = levels(("early", EARLY, 1), ("late", LATE, 4))


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (grid(2, 2), grid(2, 2)),
        (flat(4), PRIVATE_LATE),  # levels are called otherwise, and paths are the same
        (REPLICAS, flat(4)),  # a part shared there becomes several
        (REPLICAS, grid(2, 2)),
        (SHARED_EARLY, flat(4)),
        (flat(1), grid(2, 3)),
        (REPLICAS, grid(3, 3)),
        (flat(2), levels(("all", EARLY + LATE, 2), ("replica", (), 2))),
        (grid(2, 2), flat(1)),  # one path of it alone
    ],
)
def test_every_path_starts_as_a_path_that_was_there(there, here):
    sources = sources_of("runs/one@3", there, here)
    before = [
        {part: module for module in there.modules_of(path) for part in there.parts_of(module)}
        for path in range(there.num_paths)
    ]
    for path in range(here.num_paths):
        modules = here.modules_of(path)
        starts = {part: at for module in modules for part, at in sources[module].items()}
        assert starts == before[path] if there.num_paths == here.num_paths else starts in before


@pytest.mark.parametrize(
    ("there", "here", "problem"),
    [
        (
            flat(4),
            grid(2, 2),
            "path 1 has `embed` of all/0001 there and would start with that of all/0000 here",
        ),
        (
            grid(2, 2),
            levels(("late", LATE, 2), ("early", EARLY, 2)),
            "path 1 has `block_01` of late/0001 there and would start with that of late/0000 here",
        ),
        (
            flat(4),
            SHARED_EARLY,
            "path 1 has `embed` of all/0001 there and would start with that of all/0000 here",
        ),
        (flat(4), flat(3), "no path here would start with all/0003"),
        (grid(3, 2), grid(2, 2), "no path here would start with early/0002"),
        (grid(2, 2), grid(1, 2), "no path here would start with early/0001"),
        (
            flat(2),
            grid(2, 2),
            "path 1 would start with all/0000 and all/0001, which no path there has together",
        ),
        (grid(2, 2), flat(4), "`embed` has 2 experts there, so all/0002 has no counterpart"),
    ],
)
def test_paths_that_were_not_there_and_modules_that_no_path_takes_are_refused(there, here, problem):
    with pytest.raises(CannotStartFrom) as raised:
        sources_of("runs/one@3", there, here)
    assert f"{problem}. runs/one@base starts any topology from its base model" in str(raised.value)


def test_a_private_part_comes_from_the_path_that_had_it():
    sources = sources_of("runs/one@3", flat(4), PRIVATE_LATE)
    assert sources[ModuleId("late", 2)] == dict.fromkeys(LATE, ModuleId("all", 2))
