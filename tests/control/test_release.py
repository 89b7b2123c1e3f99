"""A release is a value: what belongs to each path, by digest."""

from support.made_up_facts import receipt

from dipaco.control.planning.release import make_release
from dipaco.topology import ModuleId
from tests.control.conftest import GRID


def release(**changes):
    modules = {module: receipt(module) for module in GRID.modules} | changes.pop("modules", {})
    return make_release("modular", 3, GRID, [modules] * 4, {"router": "r1"} | changes)


def test_the_digest_changes_with_any_module_and_any_companion():
    others = [
        release(router="r2"),
        release(tokenizer="t"),
        release(modules={ModuleId("late", 1): receipt("another")}),
    ]
    assert len({one.digest for one in [release(), *others]}) == 4


def test_modules_with_equal_bytes_are_one_object():
    same = receipt("base")
    shared = release(modules=dict.fromkeys(GRID.modules, same))
    assert shared.objects == {same.digest: same}
