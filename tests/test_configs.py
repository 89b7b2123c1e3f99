"""Every config that is shipped loads, says what it costs, and describes a model that its topology
can divide.
"""

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest

from dipaco.inner.optimizer import learning_rates
from dipaco.model.config import part_names
from dipaco.model.spec import describe
from dipaco.overrides import from_tree, load_config, load_sweep, settings
from dipaco.sweeps.shared_base import base_digest
from dipaco.topology import assemble, dissect
from tests.support.failures import failures

FOLDER = Path(__file__).parents[1] / "configs"
FILES = sorted(FOLDER.glob("*.py"))
SWEEPS = sorted((FOLDER / "ablations").glob("*.py"))


CONFIGS = {file: load_config(file) for file in FILES}


def test_there_are_configs_and_the_quickstart_is_one_of_them():
    assert "quickstart" in {file.stem for file in FILES}


def of_every_config(check):
    """A test of one config -> the test of all."""

    def test():
        assert failures(lambda file: check(file, CONFIGS[file]), CONFIGS) == {}

    return test


@of_every_config
def test_it_says_what_it_costs_and_is_called_as_its_file(file, config):
    doc = ast.get_docstring(ast.parse(file.read_text()))
    assert doc
    assert any(word in doc for word in ("minute", "hour", "day", "Cost"))
    assert config.name == file.stem
    assert len(file.read_text().splitlines()) <= 75, "a config is a page"


@of_every_config
def test_it_comes_back_from_json(file, config):
    again = from_tree(json.loads(config.to_json()))
    assert again == config
    assert again.to_json() == config.to_json()
    names = settings(config)
    assert {"inner.steps", "model.d_model", "phases", "outer.learning_rate"} <= names.keys()


@of_every_config
def test_a_run_that_is_compared_with_others_makes_no_texts(file, config):
    """They take time, and nothing of them is compared."""
    assert (config.samples.prompts > 0) == (file.stem == "quickstart" or "paper" in file.stem)


@of_every_config
def test_its_topology_divides_the_model_that_it_describes(file, config):
    described = describe(config.model)
    assert tuple(sorted(described)) == tuple(sorted(part_names(config.model)))
    last = config.num_paths - 1
    modules = dissect(described, config.topology, last)
    again = assemble(modules, config.topology.modules_of(last))
    assert again.keys() == described.keys()
    assert all(again[name] is described[name] for name in again)


@of_every_config
def test_every_arm_can_take_its_steps(file, config):
    """Warm-ups end before the arms do, and each phase has a step."""
    for arm in (config.plan.base, *config.plan.arms):
        assert arm.steps_before(arm.phases) == arm.total_steps
        if arm.total_steps:
            rates = learning_rates(config.inner, arm.total_steps, arm.total_steps - 1, 1)
            end = config.inner.learning_rate * config.inner.end_fraction
            assert rates[0] == pytest.approx(end, rel=1e-4)


SHAPES = {  # paths, modules: the paper's
    "paper_2x4": (8, 2 + 4),
    "paper_8x8": (64, 8 + 8),
    "paper_8x8_private": (64, 64 + 8 + 8 + 1),
    "paper_16x16": (256, 256 + 16 + 16 + 1),
    "baseline_dense": (1, 1),
    "baseline_diloco": (4, 1),
    "baseline_flat_moe": (4, 4),
}


def test_grids_have_the_papers_paths_and_modules_and_baselines_are_their_limits():
    topologies = {name: CONFIGS[FOLDER / f"{name}.py"].topology for name in SHAPES}
    assert {
        name: (each.num_paths, len(each.modules)) for name, each in topologies.items()
    } == SHAPES


def test_a_sweep_says_what_it_costs_and_its_rows_can_be_trained_and_compared():
    assert len(SWEEPS) > 10
    assert failures(check_sweep, SWEEPS) == {}


def check_sweep(file):
    doc = ast.get_docstring(ast.parse(file.read_text()))
    assert doc
    assert f"dipaco ablate configs/ablations/{file.name}" in doc
    assert any(word in doc for word in ("minute", "hour"))
    rows = load_sweep(file)
    assert len(rows) > 1
    different = {
        json.dumps(dataclasses.asdict(dataclasses.replace(config, name="any")))
        for config in rows.values()
    }
    assert len(different) == len(rows), "two rows are the same run"
    for config in rows.values():
        parts = {part for m in config.topology.modules for part in config.topology.parts_of(m)}
        assert parts == set(part_names(config.model))
        for arm in (config.plan.base, *config.plan.arms):
            if arm.total_steps:
                rates_of(config.inner, arm.total_steps)


@functools.cache  # rows differ in something else
def rates_of(inner, steps):
    return learning_rates(inner, steps, 0, 1)


def test_the_rows_of_sharing_differ_in_what_is_shared_and_in_nothing_else():
    rows = load_sweep(FOLDER / "ablations" / "sharing.py")
    assert list(rows) == ["dense", "diloco", "2x2", "2x2 private", "flat"]
    paths = {name: (c.num_paths, len(c.topology.modules)) for name, c in rows.items()}
    assert paths == {
        "dense": (1, 1),
        "diloco": (4, 1),
        "2x2": (4, 4),
        "2x2 private": (4, 8),
        "flat": (4, 4),
    }
    assert len({base_digest(config) for config in rows.values()}) == 1
    grid = settings(rows["2x2"])
    for name in ("2x2 private", "flat", "diloco"):
        changed = {key for key, value in settings(rows[name]).items() if grid[key] != value}
        assert changed - {"name", "outer.rescale_by_fan_in"} == {"topology.levels"}


def test_the_diagram_of_the_front_page_is_the_quickstarts_grid():
    page = (FOLDER.parent / "README.md").read_text()
    shown = re.findall(r"path (\d)  ═+▶ +(early/\d+)  ─+  (late/\d+)", page)
    topology = load_config(FOLDER / "quickstart.py").topology
    assert [tuple(row) for row in shown] == [
        (str(path), *map(str, topology.modules_of(path))) for path in range(topology.num_paths)
    ]
