"""Compiled programs are cached per kind of machine, and read again."""

import os

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from dipaco.runs.machine import machine
from dipaco.runs.programs import use_compilation_cache


@pytest.fixture
def cache(tmp_path):
    """Kept in `tmp_path`; as it was afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    compilation_cache.reset_cache()
    use_compilation_cache(tmp_path)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_compiled_programs_are_read_again_with_the_same_bits(cache):
    told = []
    jax.monitoring.register_event_listener(lambda event, **_: told.append(event))
    x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)

    def compute():
        jax.clear_caches()  # as in a new process
        return np.asarray(jax.jit(lambda x: jax.nn.softmax(x @ x.T).sum(0))(x))

    first = compute()
    hits = told.count("/jax/compilation_cache/cache_hits")
    np.testing.assert_array_equal(compute(), first)
    assert told.count("/jax/compilation_cache/cache_hits") > hits
    (folder,) = cache.iterdir()
    assert any(folder.iterdir())


def test_another_machine_has_another_folder(cache, monkeypatch):
    ours = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(77)))
    assert "77 CPUs" in machine()
    use_compilation_cache(cache)
    assert jax.config.jax_compilation_cache_dir not in (None, ours)
