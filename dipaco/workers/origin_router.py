"""The router of the run that another starts from: conditions under which it comes along, and the
new run's settings that then do not count.
"""

import dataclasses
from typing import Any

from dipaco.config import RunConfig
from dipaco.routing.config import LIKELIHOOD, RANDOM, SMALL_MODELS
from dipaco.runs.rules import Recorded
from dipaco.runs.run import Run
from dipaco.workers.errors import CannotStartFrom

# Settings of routing that do not change the fit of a router before phase 0.
NOT_OF_THE_FIT = (
    "overlap",
    "alternations",
    "target_share",
    "rule",
    "shortlist",
    "prior",
)


def comes_from_base(other: Run, config: RunConfig, rules: Recorded) -> bool:
    """True if the base model of another run comes with its router: it was fitted there as this run
    would fit its own. Small models never come. The base model and the text do, and give the same
    small models again.
    """
    is_routed = bool(other.ledger.facts.routings())
    came_with_modules = other.given("modules") is not None  # and may be of other settings
    is_fitted = not came_with_modules and other.config.routing.kind != SMALL_MODELS
    is_same_rule = other.rules.get("router") == rules.get("router")
    return is_routed and is_fitted and is_same_rule and not _fit_differs(other.config, config)


def check_router(source: str, other: Run, config: RunConfig, rules: Recorded) -> None:
    """Refuses modules whose router would come with them, and cannot.

    Raises:
      CannotStartFrom: their documents are routed by another rule, or small models or chance made
        their shards or are to make those here.
    """
    base = f"{source.rpartition('@')[0]}@base"
    kinds = other.config.routing.kind, config.routing.kind
    if SMALL_MODELS in kinds:
        raise CannotStartFrom(
            source=source,
            problem=f"`routing.kind` is {kinds[0]} there and {kinds[1]} here, and modules come "
            "with a router of features, or not at all: small models stay where they were fitted. "
            f"{base} fits a router here",
        )
    if RANDOM in kinds and kinds[0] != kinds[1]:
        raise CannotStartFrom(
            source=source,
            problem=f"`routing.kind` is {kinds[0]} there and {kinds[1]} here, and modules come "
            f"with the router that made their shards. Give the same kind; {base} starts with "
            "another",
        )
    theirs, ours = other.rules.get("router"), rules.get("router")
    if theirs == ours:
        return
    if theirs is None:
        problem = "its router is built in, and a router of your own is given. Leave that out; "
    else:
        problem = (
            f"its documents are routed by `{theirs.name}`, and its modules come with their router: "
            "give the same, in the same source, as dipaco.run(..., rules=dipaco.Rules(router=...));"
            " "
        )
    raise CannotStartFrom(source=source, problem=f"{problem}{base} starts with another router")


def notes_on_router(source: str, other: Run, config: RunConfig, phase: int) -> list[str]:
    """Notes for the reader of the report on the router that came with modules."""
    notes = []
    if differing := _fit_differs(other.config, config):
        notes.append(
            f"The router came with the modules of {source}, so these settings of its fit do not "
            f"count here: {'; '.join(differing)}."
        )
    routing = other.config.routing
    if routing.rule == LIKELIHOOD and any(at < phase for at in routing.alternations):
        notes.append(
            f"Until phase {phase} of {source} documents had been shared out by likelihood; here "
            "they are by its router of features, until the next alternation."
        )
    return notes


def _fit_differs(there: RunConfig, here: RunConfig) -> list[str]:
    """The settings by which the two would fit a router differently, as text."""

    def of(config: RunConfig) -> dict[str, Any]:
        routing = dataclasses.asdict(config.routing)
        fit = {f"routing.{n}": each for n, each in routing.items() if n not in NOT_OF_THE_FIT}
        is_product = config.routing.kind == "product_kmeans"
        choices = config.topology.choices if is_product else ()
        fit["data.prefix_tokens"] = config.data.prefix_tokens
        return fit | {"paths": config.num_paths, "experts of the levels": choices}

    before, now = of(there), of(here)
    return [
        f"{name if ' ' in name or name == 'paths' else f'`{name}`'} {before[name]} there, "
        f"{now[name]} here"
        for name in now
        if before[name] != now[name]
    ]
