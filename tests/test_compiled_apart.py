"""Laws and contracts are compiled without XLA's optimisation; no other test may run what was
compiled so.
"""

from types import SimpleNamespace

import jax
import pytest

from tests.conftest import pytest_runtest_setup


class Session:
    items = ()


def item(*markers: str, path="this", session=None):
    one = SimpleNamespace(get_closest_marker=lambda name: name in markers or None, path=path)
    one.session = session or Session()
    one.session.items = (*one.session.items, one)
    return one


@pytest.mark.contract
def test_a_file_of_which_slow_tests_are_run_is_compiled_in_one_way():
    session = Session()
    item("contract", "slow", session=session)
    beside, other = item("law", session=session), item("law", path="other", session=session)
    pytest_runtest_setup(beside)
    assert not jax.config.read("jax_disable_most_optimizations")
    pytest_runtest_setup(other)
    assert jax.config.read("jax_disable_most_optimizations")


@pytest.mark.contract
@pytest.mark.parametrize("others", [("process",), ("cluster",), ("contract", "slow")])
def test_a_program_compiled_for_a_law_is_compiled_again_for_other_tests(others):
    double = jax.jit(lambda x: 2 * x)
    pytest_runtest_setup(item("law"))
    assert jax.config.read("jax_disable_most_optimizations")
    double(1.0)
    pytest_runtest_setup(item("contract"))
    assert double._cache_size() == 1
    pytest_runtest_setup(item(*others))
    assert not jax.config.read("jax_disable_most_optimizations")
    assert double._cache_size() == 0
