"""The loads of many paths of `tools/bench_serve.py` in their smallest form."""

import dataclasses

import bench_serve
import pytest
from support import many_paths

from tests.support.tiny_run import TOY

MODEL = dataclasses.replace(TOY.model, max_length=32)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(many_paths, "ROWS", 4)
    monkeypatch.setattr(many_paths, "MIXED_PROMPTS", (2, 16))
    monkeypatch.setattr(many_paths, "MIXED_ANSWERS", (1, 16))


def test_mixed_lengths_are_those_of_the_seed_and_within_their_bounds():
    paths = list(range(1000))
    asked = many_paths.mixed(paths, seed=1)
    assert [each.path for each in asked] == paths
    assert {each.prompt_tokens for each in asked} == set(range(2, 17))
    assert {each.new_tokens for each in asked} == set(range(1, 17))
    assert asked == many_paths.mixed(paths, seed=1) != many_paths.mixed(paths, seed=2)


@pytest.mark.slow
def test_traffic_of_each_kind_is_measured_with_memory_for_some_and_for_all(tmp_path):
    found = bench_serve.memory_for_some(MODEL, 2, tmp_path, 1, new_tokens=8, num_fitting=2)
    kinds = ("even", "skewed", "mixed")
    latest = {f"{kind}_p95_first_token_ms_memory_for_{n}" for kind in kinds for n in (2, "all")}
    assert found.keys() == {*kinds, *latest}
    assert all(found[kind] > 0 for kind in kinds)
