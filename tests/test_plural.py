"""A number with its noun."""

import pytest

from dipaco.plural import counted


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 documents"), (1, "1 document"), (2, "2 documents"), (1200, "1,200 documents")],
)
def test_one_is_singular_and_any_other_number_plural(number, said):
    assert counted(number, "document") == said
