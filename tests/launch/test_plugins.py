"""What is installed says whether JAX may find more than the CPU."""

import importlib.util

import pytest

from dipaco.launch import plugins
from dipaco.launch.plugins import is_for_cpu_only


def test_jax_without_plugins_is_for_the_cpu_only(monkeypatch):
    monkeypatch.setattr(plugins, "entry_points", lambda group: ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert is_for_cpu_only({})
    assert not is_for_cpu_only({"PJRT_NAMES_AND_LIBRARY_PATHS": "own:/lib/own.so"})


@pytest.mark.parametrize(
    "file",
    ["jax_plugins/own/__init__.py", "own-1.dist-info/entry_points.txt", "libtpu/__init__.py"],
)
def test_a_plugin_of_jax_is_found_in_each_place_where_it_may_be(tmp_path, monkeypatch, file):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("[jax_plugins]\nown = own\n" if file.endswith("txt") else "")
    (tmp_path / file).with_name("METADATA").write_text("Name: own\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_for_cpu_only({})
