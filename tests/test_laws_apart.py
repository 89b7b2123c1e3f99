"""Laws are compiled without XLA's optimisation; no other test may run what was compiled so."""

from types import SimpleNamespace

import jax
import pytest

from tests.conftest import pytest_runtest_setup


def item(is_law: bool):
    return SimpleNamespace(get_closest_marker=lambda name: is_law or None)


@pytest.mark.contract
def test_a_program_compiled_for_a_law_is_compiled_again_for_other_tests():
    double = jax.jit(lambda x: 2 * x)
    pytest_runtest_setup(item(is_law=True))
    assert jax.config.read("jax_disable_most_optimizations")
    double(1.0)
    pytest_runtest_setup(item(is_law=True))
    assert double._cache_size() == 1
    pytest_runtest_setup(item(is_law=False))
    assert not jax.config.read("jax_disable_most_optimizations")
    assert double._cache_size() == 0
