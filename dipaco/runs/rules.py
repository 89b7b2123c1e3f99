"""Own rules in the place of the built-in ones: an outer step, a router, a path loss.

A rule is a function at the top level of a module that can be imported. The run keeps its name,
`module:function`, and the digest of its module's source. Every process that needs the rule imports
it by that name, and refuses another source. What the module itself imports is not in the digest.
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dipaco.config import RunConfig, check_effects
from dipaco.errors import SettingsDisagree
from dipaco.routing.config import RANDOM, SMALL_MODELS
from dipaco.runs.errors import RuleDiffers, RuleNotImportable, RuleStale, RuleUnnamed
from dipaco.runs.rule_source import digest_of, is_loaded, source_of

if TYPE_CHECKING:
    from dipaco.model.loss import LogitsLoss
    from dipaco.outer.own_step import OuterRule
    from dipaco.routing.own_router import RouterRule

WORDS = {"outer_step": "outer step", "router": "router", "path_loss": "path loss"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Functions that take the place of built-in rules. None: the built-in.

    Each stands at the top level of a module that every worker can import, and is pure: its result
    depends on its arguments alone.
    """

    # settings of `outer` -> optax's (init, update) of one module (`outer/own_step.py`)
    outer_step: "OuterRule | None" = None
    # settings of `routing` -> (fit, costs) (`routing/own_router.py`)
    router: "RouterRule | None" = None
    # logits, tokens, segments -> (summed loss, targets), as `next_token_loss` in `model/loss.py`
    path_loss: "LogitsLoss | None" = None


class RecordedRule(NamedTuple):
    """A rule that a run has."""

    name: str  # module:function
    digest: str  # digest of the module's source


Recorded = Mapping[str, RecordedRule]  # field of `Rules` -> its rule


def record_of(rules: Rules) -> dict[str, RecordedRule]:
    """The record that a run keeps of rules.

    Raises:
      RuleUnnamed: a worker could not import a rule.
      RuleStale: its file was edited after this process had imported it.
    """
    given = {kind: getattr(rules, kind) for kind in WORDS}
    return {kind: _recorded(kind, rule) for kind, rule in given.items() if rule is not None}


def _recorded(kind: str, rule: Any) -> RecordedRule:
    module, function = getattr(rule, "__module__", None), getattr(rule, "__qualname__", None)

    def refuse(problem: str) -> RuleUnnamed:
        return RuleUnnamed(kind=WORDS[kind], problem=problem, field=kind)

    if not (callable(rule) and isinstance(module, str) and isinstance(function, str)):
        raise refuse(f"{rule!r} is no function, and has no name that it could be imported by")
    if module == "__main__":
        raise refuse(
            f"`{function}` is defined in the script or notebook that runs now, which no other "
            "process can import"
        )
    if "<" in function:  # <lambda>, <locals>
        raise refuse(f"`{function}` of `{module}` is a lambda, or inside another function")
    found: Any = sys.modules.get(module)
    for name in function.split("."):
        found = getattr(found, name, None)
    if found is not rule:
        raise refuse(f"`{module}:{function}` is the name of something else")
    return RecordedRule(f"{module}:{function}", _source_digest(kind, f"{module}:{function}"))


def imported(kind: str, recorded: RecordedRule) -> Callable[..., Any]:
    """The rule, by its name.

    Raises:
      RuleNotImportable: there is no such module or function here.
      RuleDiffers, RuleStale: its module has another source here.
    """
    module, _, function = recorded.name.partition(":")
    try:
        rule: Any = importlib.import_module(module)
        for name in function.split("."):
            rule = getattr(rule, name)
    except Exception as error:  # whatever the module does when it is imported
        raise RuleNotImportable(
            kind=WORDS[kind],
            name=recorded.name,
            module=module,
            problem=f"{type(error).__name__}: {error}",
        ) from error
    if _source_digest(kind, recorded.name) != recorded.digest:
        file = getattr(sys.modules[module], "__file__", module)
        raise RuleDiffers(kind=WORDS[kind], name=recorded.name, file=file)
    return rule


def _source_digest(kind: str, name: str) -> str:
    module = sys.modules[name.partition(":")[0]]
    try:
        source = source_of(module)
    except (OSError, TypeError) as error:
        raise RuleUnnamed(
            kind=WORDS[kind], field=kind, problem=f"the source of `{name}` cannot be read ({error})"
        ) from error
    if not is_loaded(module, source):
        raise RuleStale(kind=WORDS[kind], name=name, file=module.__file__)
    return digest_of(source)


def check_settings(config: RunConfig, rules: Recorded) -> None:
    """Checks the rules of a run that is to begin. Raises `SettingsDisagree` if a rule would have no
    effect, or a setting none with it, and `BadSetting` if a setting has none at all.
    """
    check_effects(config)
    routing, inner = config.routing, config.inner
    refusals = (
        (
            "outer_step",
            config.outer.synchronous,
            "`outer.synchronous` is on, which has no outer step",
        ),
        (
            "router",
            routing.kind in (RANDOM, SMALL_MODELS),
            f"`routing.kind` is {routing.kind}, which routes without a router of features",
        ),
        ("router", config.num_paths == 1, "there is one path, and nothing to route"),
        (
            "path_loss",
            inner.loss_chunks > 1,
            f"`inner.loss_chunks` is {inner.loss_chunks}, and the rule is given whole rows: set it "
            "to 1",
        ),
    )
    for kind, is_so, what in refusals:
        if kind in rules and is_so:
            problem = f"the {WORDS[kind]} is `{rules[kind].name}`, and {what}"
            raise SettingsDisagree(problem=problem)


def phrase(rules: Recorded) -> str:
    """A phrase that names the rules of a run, or `built-in`."""
    named = (f"{WORDS[kind]} `{rule.name}`" for kind, rule in rules.items())
    return ", ".join(named) or "built-in"
