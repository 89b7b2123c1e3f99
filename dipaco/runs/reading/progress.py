"""Inner steps of a run so far, and costs of its base model, its router and the modules that it
starts from.
"""

from typing import NamedTuple

from dipaco.config import MODULAR
from dipaco.control.planning.summaries import Prepared, Routed
from dipaco.routing.config import SMALL_MODELS
from dipaco.runs.forecast.traffic import base_bytes, machine_bytes
from dipaco.runs.run import Run
from dipaco.runs.small_models import flops_of_fit
from dipaco.schedule.arm import Arm


class BaseCosts(NamedTuple):
    """Costs of training a base model."""

    steps: int
    tokens: int
    seconds: float
    num_bytes: float  # sent by the machine that trained it


def base_costs(run: Run) -> BaseCosts:
    """Costs of the run's base model, in this run and in the one that it comes from (`--from`)."""
    base = run.plan.base
    totals = run.ledger.progress.training_totals(base.name)
    there = run.given("base_costs")
    given = BaseCosts(0, 0, 0.0, 0.0) if there is None else BaseCosts(**there)
    return BaseCosts(
        given.steps + base.total_steps,
        given.tokens + totals.tokens,
        given.seconds + totals.seconds,
        given.num_bytes + base_bytes(run.config),
    )


class StartCosts(NamedTuple):
    """Costs of the modular model in the run that its modules come from (`--from DIR@PHASE`),
    without its base model.
    """

    source: str = ""  # DIR@PHASE, or empty if its modules start from the base model
    steps: int = 0  # A path took so many.
    tokens: int = 0  # sum over all paths, like the rest
    seconds: float = 0.0
    machines: int = 1  # paths of a phase, which shared it
    machine_bytes: float = 0.0  # of each of them
    perplexity: float | None = None  # measured there, None if not known or not measured alike here
    corpus: str = ""  # digest of the text that it was measured on


def start_costs(run: Run) -> StartCosts:
    """Costs of the modules that the run starts from."""
    there = run.given("start_costs")
    return StartCosts() if there is None else StartCosts(**there)


def costs_of_start(other: Run, phase: int, source: str, *, is_measured_alike: bool) -> StartCosts:
    """Costs for a run that starts from the modules of `other` at a phase.

    Args:
      is_measured_alike: with the same text, the new run would evaluate them as `other` did.
    """
    before, machines = start_costs(other), other.plan.arm(MODULAR).num_at_once
    totals = other.ledger.progress.training_totals(MODULAR, before=phase)
    step_tokens = other.config.inner.batch_size * other.config.data.length
    measured = {
        each.phase: each.perplexity
        for each in other.ledger.facts.evaluations()
        if each.arm == MODULAR
    }
    return StartCosts(
        source=source,
        steps=before.steps + round(totals.tokens / step_tokens / machines),
        tokens=before.tokens + totals.tokens,
        seconds=before.seconds + totals.seconds,
        machines=machines,
        machine_bytes=before.machine_bytes + machine_bytes(other.config, MODULAR, phase, 0.0),
        perplexity=measured.get(phase) if is_measured_alike else None,
        corpus=other.stage("prepare").artifacts["corpus"].digest,
    )


def bytes_per_machine(run: Run, arm: Arm, phase: int) -> int:
    """Bytes through the network interface of each machine until an arm has come to a phase, those
    of the modules that it starts from included.
    """
    start = start_costs(run).machine_bytes if arm.name == MODULAR else 0.0
    return round(start + machine_bytes(run.config, arm.name, phase, base_costs(run).num_bytes))


class RouterCosts(NamedTuple):
    """Costs of a router that learns by gradient steps."""

    flops: int
    seconds: float


def router_costs(run: Run) -> RouterCosts:
    """Costs of small models that route. Zero for a router that is fitted to features."""
    if run.config.routing.kind != SMALL_MODELS:
        return RouterCosts(0, 0.0)
    documents = Prepared.of(run.stage("prepare")).documents["train"]
    seconds = Routed.of(run.stage("route")).small_models_seconds
    assert seconds is not None
    return RouterCosts(flops_of_fit(run.config, documents), seconds)


def progress_of(run: Run, *, with_partial_snapshots: bool = False) -> tuple[int, int]:
    """Inner steps done and in all, over every path of every arm, plus the router's for
    re-routing: most of a run's time goes into them.

    Args:
      with_partial_snapshots: count the saved steps of unfinished phases too.
    """
    done = total = 0
    step_tokens = run.config.inner.batch_size * run.config.data.length
    for arm in (run.plan.base, *run.plan.arms):
        total += arm.path_steps
        done += run.ledger.progress.training_totals(arm.name).tokens // step_tokens
        done += (
            run.ledger.progress.steps_in_partial_snapshots(arm.name)
            if with_partial_snapshots
            else 0
        )
    if run.plan.reroutes:
        total += run.config.reroute.steps
        is_done = any(stage.stage == "reroute" for stage in run.ledger.facts.stages())
        done += run.config.reroute.steps if is_done else 0
    return done, total


def work_left_seconds(run: Run) -> float | None:
    """Seconds that one worker would still train at the speed of the arm's steps so far, or of all
    steps if the arm has none. None before any step.
    """
    step_tokens = run.config.inner.batch_size * run.config.data.length
    arms = (run.plan.base, *run.plan.arms)
    totals = {arm.name: run.ledger.progress.training_totals(arm.name) for arm in arms}
    tokens = sum(at.tokens for at in totals.values())
    if not tokens:
        return None
    mean = sum(at.seconds for at in totals.values()) / tokens
    left = 0.0
    for arm in arms:
        at = totals[arm.name]
        saved = run.ledger.progress.steps_in_partial_snapshots(arm.name)
        steps = max(0, arm.path_steps - at.tokens // step_tokens - saved)
        left += steps * step_tokens * (at.seconds / at.tokens if at.tokens else mean)
    return left
