"""Numbers with their nouns, and lists of names."""

import pytest

from dipaco.plural import counted, largest, listed


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 documents"), (1, "1 document"), (2, "2 documents"), (1200, "1,200 documents")],
)
def test_one_is_singular_and_any_other_number_plural(number, said):
    assert counted(number, "document") == said


def test_of_many_names_the_first_are_said_and_the_rest_counted():
    assert [listed("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]
    assert listed(range(5000), 1) == "0 and 4,999 more"
    assert listed([], 2) == ""
    assert largest({"few": 1, "many": 6, "some": 3}, 2) == "many 60%, some 30%"
    assert largest({}, 2) == ""
