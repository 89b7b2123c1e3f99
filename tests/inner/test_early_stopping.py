"""The best so far: a running minimum that prefers the earlier of equals."""

import functools
import math

from hypothesis import given
from hypothesis import strategies as st

from dipaco.inner.early_stopping import Best, best_so_far


@given(st.lists(st.integers(0, 5), min_size=1))
def test_it_is_the_first_of_the_lowest_losses(losses):
    best = functools.reduce(lambda best, now: best_so_far(best, *now), enumerate(losses), None)
    assert best == Best(losses.index(min(losses)), min(losses))


def test_a_loss_that_is_no_number_is_never_better():
    assert best_so_far(Best(2, 3.0), 3, math.nan) == Best(2, 3.0)
    assert best_so_far(Best(2, math.nan), 3, 9.0) == Best(3, 9.0)
