"""A run with rules of its own: equal to the built-in where the rule is the same, to Algorithm 1
under any, and read, served and started from by those who have the rule.
"""

import sys

import numpy as np
import own_outer_step
import own_path_loss
import own_router
import pytest

import dipaco as library
from dipaco.config import MODULAR
from dipaco.data.windows import first_tokens
from dipaco.library.console import title_of
from dipaco.observe.overview import overview
from dipaco.routing.router import fit_router
from dipaco.runs.errors import RuleNotImportable
from dipaco.runs.opening import open_run
from dipaco.runs.reading.report import make_report
from dipaco.runs.reading.status import status_of
from dipaco.runs.routing import features
from dipaco.runs.rules import Rules, record_of
from dipaco.runs.run import Run
from dipaco.serving.dispatch import Dispatcher, dispatch
from dipaco.store.tensors import load_tree
from dipaco.workers import replay
from dipaco.workers.errors import CannotStartFrom
from dipaco.workers.origin import from_run
from tests.workers.conftest import CONFIG, changed, finish, work_until

BUILT_IN = Rules(
    outer_step=own_outer_step.nesterov,
    router=own_router.nearest,
    path_loss=own_path_loss.plain,
)
OTHERS = {
    "outer_step": Rules(outer_step=own_outer_step.adam),
    "router": Rules(router=own_router.by_direction),
    "path_loss": Rules(path_loss=own_path_loss.with_z_loss),
}
EVALUATED = changed(CONFIG, outer={"learning_rate": 0.01}, baselines=("dense",))


def digests(run: Run) -> dict:
    """Every module of every arm at every phase, and every perplexity."""
    modules = {
        (arm.name, str(module), phase): receipt.digest
        for arm in (run.plan.base, *run.plan.arms)
        for phase in range(arm.phases + 1)
        for module, receipt in run.ledger.facts.receipts_at(arm.name, phase).items()
    }
    evaluated = {(e.arm, e.phase): e.perplexity for e in run.ledger.facts.evaluations()}
    return modules | evaluated


@pytest.fixture(scope="module")
def plain(opened_in, begun):
    """Of a run without rules of its own."""
    run = opened_in(begun(EVALUATED, "the end"), EVALUATED)
    found = digests(run)
    run.ledger.close()
    return found


def test_the_built_in_rules_written_out_give_the_digests_of_a_run_without(begin, plain):
    run = begin(EVALUATED, BUILT_IN)
    finish(run)
    assert list(run.rules) == ["outer_step", "router", "path_loss"]
    assert digests(run) == plain
    assert replay.differences(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_another_rule_gives_other_modules_and_equals_algorithm_1(begin, plain, kind):
    run = begin(EVALUATED, OTHERS[kind])
    finish(run)
    assert replay.differences(run) == []
    here = digests(run)
    assert here.keys() == plain.keys()
    changed = {key[0] for key in here if here[key] != plain[key]}
    trained = {"base", MODULAR, "dense"}
    assert changed == (trained if kind == "path_loss" else {MODULAR})
    assert_status_and_report_name(run, kind)


def assert_status_and_report_name(run, kind):
    rule = run.rules[kind]
    assert status_of(run)["rules"] == {kind: rule._asdict()}
    with library.open(run.address.folder) as opened:
        for shown in (repr(opened), title_of(run)):
            assert f"{kind.replace('_', ' ')} `{rule.name}`" in shown
    assert f"own rules: {kind.replace('_', ' ')} {rule.name}" in overview(status_of(run), 80)
    named = f"`{rule.name}` (source {rule.digest[:10]})"
    assert any(named in note for note in make_report(run).notes)


def test_an_own_router_is_fitted_to_the_labels_at_an_alternation(begin):
    fitted_to, nearest = [], own_router.nearest

    def noting(settings):
        functions = nearest(settings)

        def fit(features_ND, choices, seed, label_N):
            fitted_to.append(label_N)
            moved = features_ND if label_N is None else features_ND[label_N != label_N[0]]
            return functions.fit(moved, choices, seed, label_N)

        return functions._replace(fit=fit)

    run = begin(changed(CONFIG, routing={"alternations": (1,)}), Rules(router=nearest))
    run._imported_rules["router"] = noting
    work_until(run, 2)
    assert fitted_to[0] is None
    labels = load_tree(run.objects, run.stage("route", 1).artifacts["labels"])
    np.testing.assert_array_equal(fitted_to[1], labels["paths"])
    before, after = (run.router_of(run.stage("route", phase)) for phase in (0, 1))
    assert (before.kind, after.kind) == ("own", "own")
    assert before.version != after.version
    assert replay.differences(run, 2) == []


@pytest.fixture(scope="module")
def directed(opened_in, tmp_path_factory):
    """Routed by a router of its own, and trained. Nobody writes to it."""
    run = opened_in(tmp_path_factory.mktemp("directed") / "run", CONFIG, OTHERS["router"])
    work_until(run, CONFIG.phases)
    yield run
    run.ledger.close()


def test_prompts_are_served_by_the_own_router_as_documents_were_routed(directed):
    held = load_tree(directed.objects, directed.stage("route").artifacts["held"])
    prefixes = first_tokens(directed.corpus, held["documents"], 32)
    release = directed.ledger.facts.release(MODULAR, CONFIG.phases)
    dispatcher = Dispatcher(directed, release)
    for tokens, length, path in zip(*prefixes, held["paths"], strict=True):
        assert dispatch(directed, release, tokens[:length], dispatcher=dispatcher).path == path
    built_in = fit_router(CONFIG.routing, features(directed, *prefixes), (2, 2), 0)
    assert (built_in.assign(features(directed, *prefixes))[:, 0] != held["paths"]).any()


def test_only_who_needs_a_rule_must_have_it(directed, monkeypatch):
    """Status, export and scores of a named path do without; routing does not."""
    monkeypatch.delitem(sys.modules, "own_router")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "examples" not in p])
    run = open_run(directed.address)
    assert status_of(run)["rules"]["router"]["name"] == "own_router:by_direction"
    run.parts_at(MODULAR, 1, 2)
    with pytest.raises(RuleNotImportable, match=r"router of this run is `own_router:by_direction`"):
        run.router_of(run.stage("route"))
    with pytest.raises(RuleNotImportable):
        run.import_rules()
    run.ledger.close()


def start(config, directed, rules, at, tmp_path):
    source = f"{directed.address}@{at}"
    return from_run(config, tmp_path / "new", source, record_of(rules))


def test_modules_come_with_their_own_router_to_a_run_of_the_same_rule(directed, tmp_path):
    given = start(CONFIG, directed, OTHERS["router"], 1, tmp_path)
    assert given["router"].digest == directed.stage("route").artifacts["router"].digest
    with pytest.raises(CannotStartFrom, match=r"routed by `own_router:by_direction`, and"):
        start(CONFIG, directed, Rules(), 1, tmp_path)
    with pytest.raises(CannotStartFrom, match=r"`own_router:by_direction`.*@base starts"):
        start(CONFIG, directed, Rules(router=own_router.nearest), 1, tmp_path)


def test_a_base_model_comes_without_the_router_of_another_rule(directed, tmp_path):
    assert "router" in start(CONFIG, directed, OTHERS["router"], "base", tmp_path)
    assert "router" not in start(CONFIG, directed, Rules(), "base", tmp_path)
    plain_rule = Rules(outer_step=own_outer_step.adam)
    assert "router" not in start(CONFIG, directed, plain_rule, "base", tmp_path)
