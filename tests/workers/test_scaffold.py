"""`tools/scaffold.py`: control variates at their limits."""

import dataclasses

import jax
import numpy as np
import pytest
import scaffold

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.topology import Level, Topology
from tests.workers.conftest import CONFIG, EVERYTHING, work_until

HOLDERS = dataclasses.replace(CONFIG.outer, vocabulary_rows="holders")


def digests(modules):
    return {module: trees.digest(tree) for module, tree in modules.items()}


def test_without_control_variates_the_modules_are_the_runs(begin):
    run = begin(dataclasses.replace(CONFIG, outer=HOLDERS))
    work_until(run, CONFIG.phases)
    *_, modules = scaffold.train(run, has_control_variates=False)
    assert digests(modules) == digests(scaffold.last_modules(run))


def test_with_them_the_first_phase_is_the_runs_and_later_ones_are_not(begin):
    run = begin(dataclasses.replace(CONFIG, outer=HOLDERS))
    work_until(run, CONFIG.phases)
    first, *_, last = scaffold.train(run)
    own = {module: run.parameters(MODULAR, module, 1) for module in CONFIG.topology.modules}
    assert digests(first) == digests(own)
    assert not set(digests(last).items()) & set(digests(scaffold.last_modules(run)).items())


def test_a_control_variate_is_the_direction_that_a_path_takes_by_itself():
    direction, correction = {"a": np.float32([2, -1])}, {"a": np.float32([0.5, 3])}
    rates, before = np.float32([0.1, 0.2, 0.05]), {"a": np.float32([1, 1])}
    parts = dict(before)
    for rate in rates:
        parts = {"a": parts["a"] - rate * direction["a"]}
        parts = jax.device_get(scaffold.corrected(parts, correction, rate))
    found = scaffold.by_itself(before, parts, correction, rates)
    np.testing.assert_allclose(found["a"], direction["a"], atol=1e-5)


def test_a_path_that_shares_nothing_has_nothing_to_correct(begin):
    topology = Topology(levels=(Level(name="all", parts=EVERYTHING, experts=3),))
    run = begin(dataclasses.replace(CONFIG, topology=topology))
    work_until(run, CONFIG.phases)
    *_, modules = scaffold.train(run)
    for module, tree in scaffold.last_modules(run).items():
        assert trees.difference(tree, modules[module]) is None
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), tree, modules[module]
        )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"inner": dataclasses.replace(CONFIG.inner, freeze_absent_tokens=True)}, "absent_tokens"),
        ({"routing": dataclasses.replace(CONFIG.routing, rule="likelihood")}, "by likelihood"),
        ({"outer": dataclasses.replace(HOLDERS, codec="int8")}, "contributions in 'int8'"),
    ],
)
def test_a_run_that_it_cannot_follow_is_refused(begin, changes, why):
    assert why in scaffold.why_not(begin(dataclasses.replace(CONFIG, **changes)))


def test_the_table_has_differences_in_percent():
    own, other = scaffold.Perplexities(50.0, 40.0), scaffold.Perplexities(49.5, 40.4)
    assert (
        scaffold.row("a", own, other) == "| a | 50.00 | 49.50 | -1.0 % | 40.00 | 40.40 | +1.0 % |"
    )
