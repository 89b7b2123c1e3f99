"""A module id is a value and a text, and each gives the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.topology import ModuleId
from dipaco.topology.errors import BadModuleId


def test_a_module_is_written_as_level_and_expert():
    assert str(ModuleId("early", 3)) == "early/0003"
    assert str(ModuleId("early", 12345)) == "early/12345"


@given(st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True), st.integers(0, 10**6))
def test_parsing_a_written_module_id_gives_the_same_module(level, expert):
    module = ModuleId(level, expert)
    assert ModuleId.parse(str(module)) == module


@pytest.mark.parametrize(
    "text", ["", "early", "early/", "early/3", "Early/0003", "early/-001", "early/0003/x", "/0003"]
)
def test_other_text_is_refused_with_an_example(text):
    with pytest.raises(BadModuleId, match=r"`early/0003`"):
        ModuleId.parse(text)


def test_modules_order_by_level_then_expert():
    modules = [ModuleId("b", 0), ModuleId("a", 10), ModuleId("a", 2)]
    assert [str(module) for module in sorted(modules)] == ["a/0002", "a/0010", "b/0000"]
