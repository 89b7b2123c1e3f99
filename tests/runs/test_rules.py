"""Rules are imported by name; what no worker could import, or what differs, is refused."""

import dataclasses
import importlib
import sys
import types

import own_outer_step
import own_path_loss
import own_router
import pytest

from dipaco.errors import SettingsDisagree
from dipaco.model.loss import next_token_loss
from dipaco.outer.step import nesterov
from dipaco.runs.errors import (
    RuleDiffers,
    RuleNotImportable,
    RuleStale,
    RuleUnnamed,
    RunOfOtherRules,
)
from dipaco.runs.opening import create_or_open, has_begun, open_run
from dipaco.runs.rules import RecordedRule, Rules, check_settings, imported, phrase, record_of
from tests.support.tiny_run import TOY

ADAM = Rules(outer_step=own_outer_step.adam)
SOURCE = "RATE = 0.5\n\n\ndef rule(settings):\n    return settings, RATE\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """`write(source)` -> the module of a user, imported; its file is changed by writing again."""
    monkeypatch.syspath_prepend(str(tmp_path / "theirs"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "theirs" / "their_rules.py"
    file.parent.mkdir()

    def write(source, *, again=False):
        file.write_text(source)
        if again:
            del sys.modules["their_rules"]
        importlib.invalidate_caches()
        return importlib.import_module("their_rules")

    yield write
    sys.modules.pop("their_rules", None)


def test_a_rule_is_kept_by_its_name_and_comes_back_as_the_same_function():
    rules = Rules(outer_step=nesterov, router=own_router.nearest, path_loss=next_token_loss)
    recorded = record_of(rules)
    assert {kind: rule.name for kind, rule in recorded.items()} == {
        "outer_step": "dipaco.outer.step:nesterov",
        "router": "own_router:nearest",
        "path_loss": "dipaco.model.loss:next_token_loss",
    }
    for kind, rule in recorded.items():
        assert imported(kind, rule) is getattr(rules, kind)
    assert record_of(Rules()) == {}
    assert phrase(record_of(ADAM)) == "outer step `own_outer_step:adam`"


def local(settings):
    return lambda: settings


IN_A_SCRIPT = types.FunctionType(local.__code__, {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (lambda settings: settings, "lambda, or inside another function"),
        (local(3), "lambda, or inside another function"),
        (IN_A_SCRIPT, "`local` is defined in the script or notebook that runs now"),
        (own_outer_step.nesterov(TOY.outer), "has no name that it could be imported by"),
        (0.7, "0.7 is no function"),
    ],
    ids=["lambda", "local", "script", "pair", "number"],
)
def test_what_no_worker_could_import_is_refused_at_once(rule, problem):
    with pytest.raises(RuleUnnamed, match=problem) as raised:
        record_of(Rules(outer_step=rule))
    assert "rules=dipaco.Rules(outer_step=my_file.my_function)" in str(raised.value)


def test_a_function_under_the_name_of_another_is_refused(write):
    module = write(SOURCE)
    first = module.rule
    write(SOURCE, again=True)
    with pytest.raises(RuleUnnamed, match="is the name of something else"):
        record_of(Rules(router=first))


def test_a_module_that_is_not_here_or_cannot_be_loaded_is_said_with_what_python_said(write):
    recorded = RecordedRule("nowhere.rules:mine", "0" * 32)
    with pytest.raises(RuleNotImportable, match=r"No module named 'nowhere'.*PYTHONPATH"):
        imported("router", recorded)
    recorded = record_of(Rules(router=write(SOURCE).rule))["router"]
    write("def other(): pass\n", again=True)
    with pytest.raises(RuleNotImportable, match=r"AttributeError.*'rule'"):
        imported("router", recorded)
    with pytest.raises(SyntaxError):
        write("def rule(:\n", again=True)
    with pytest.raises(RuleNotImportable, match="SyntaxError"):
        imported("router", recorded)


def test_another_source_is_refused_and_the_old_one_is_not(write):
    recorded = record_of(Rules(router=write(SOURCE).rule))["router"]
    module = write(SOURCE.replace("0.5", "0.25"), again=True)
    with pytest.raises(RuleDiffers, match=r"`their_rules:rule`, and .*their_rules\.py has another"):
        imported("router", recorded)
    assert record_of(Rules(router=module.rule))["router"].digest != recorded.digest
    module = write(SOURCE, again=True)
    assert imported("router", recorded) is module.rule


@pytest.mark.parametrize(
    ("old", "new"), [("0.5", "0.25"), ("settings, RATE", "RATE, settings"), ("RATE =", "\nRATE =")]
)
def test_a_file_that_was_edited_after_it_was_imported_is_refused(write, old, new):
    """The digest would be of a rule that does not run."""
    module = write(SOURCE)
    recorded = record_of(Rules(router=module.rule))["router"]
    assert write(SOURCE.replace(old, new)) is module
    for use in (lambda: record_of(Rules(router=module.rule)), lambda: imported("router", recorded)):
        with pytest.raises(RuleStale, match="restart the kernel"):
            use()


def changed(**groups):
    replaced = {
        name: dataclasses.replace(getattr(TOY, name), **values) for name, values in groups.items()
    }
    return dataclasses.replace(TOY, **replaced)


@pytest.mark.parametrize(
    ("rules", "config", "problem"),
    [
        (ADAM, changed(outer={"synchronous": True}), "`own_outer_step:adam`, and .*no outer step"),
        (
            Rules(router=own_router.nearest),
            changed(routing={"kind": "random"}),
            "`routing.kind` is random",
        ),
        (
            Rules(path_loss=own_path_loss.plain),
            changed(inner={"loss_chunks": 2}),
            "`inner.loss_chunks` is 2.*set it to 1",
        ),
    ],
    ids=["outer step", "router", "path loss"],
)
def test_settings_that_leave_a_rule_without_effect_are_refused(tmp_path, rules, config, problem):
    check_settings(TOY, record_of(rules))
    with pytest.raises(SettingsDisagree, match=problem):
        create_or_open(tmp_path / "run", config, rules=record_of(rules))
    assert not (tmp_path / "run").exists()


def test_a_run_is_opened_with_its_rules_or_none_and_refuses_others(half, copy_of, tmp_path):
    """`half` has none; a run without facts is begun again, as with another config."""
    folder, recorded = copy_of(half).folder, record_of(ADAM)
    config = open_and_close(folder).requested_config
    create_or_open(folder, config)[0].ledger.close()
    create_or_open(folder, config, rules={})[0].ledger.close()
    with pytest.raises(RunOfOtherRules, match=r"of other rules: built-in; given were: outer step"):
        create_or_open(folder, config, rules=recorded)

    new = tmp_path / "new"
    create_or_open(new, TOY, rules=recorded)[0].ledger.close()
    assert has_begun(new, TOY)
    assert has_begun(new, TOY, recorded)
    assert not has_begun(new, TOY, {}, is_alone=True)
    run, is_new = create_or_open(new, TOY)
    assert (is_new, run.rules, run.rule("outer_step")) == (False, recorded, own_outer_step.adam)
    assert run.rule("router") is None
    run.ledger.close()
    other = record_of(Rules(path_loss=own_path_loss.plain))
    run, is_new = create_or_open(new, TOY, rules=other, is_alone=True)
    assert (is_new, list(run.rules)) == (True, ["path_loss"])
    run.ledger.close()


def test_a_run_that_has_facts_refuses_a_rule_whose_file_was_edited(write, tmp_path, monkeypatch):
    recorded = record_of(Rules(router=write(SOURCE).rule))
    create_or_open(tmp_path / "run", TOY, rules=recorded)[0].ledger.close()
    edited = record_of(Rules(router=write(SOURCE.replace("0.5", "2"), again=True).rule))
    with monkeypatch.context() as patch:
        patch.setattr("dipaco.control.facts.facts.Facts.stages", lambda _: ["prepare"])
        with pytest.raises(RuleDiffers, match="another source than when the run began"):
            create_or_open(tmp_path / "run", TOY, rules=edited)
    # Nothing was recorded.
    run, is_new = create_or_open(tmp_path / "run", TOY, rules=edited, is_alone=True)
    assert (is_new, run.rules) == (True, edited)
    run.ledger.close()


def open_and_close(folder):
    run = open_run(folder)
    run.ledger.close()
    return run
