"""Learning curves over cost: perplexity of each arm against steps, tokens, bytes and seconds. Their
last points are the rows of the report.
"""

from collections.abc import Sequence
from typing import Any

from dipaco.config import MODULAR
from dipaco.control.planning.summaries import Routed
from dipaco.control.planning.tasks import Evaluated
from dipaco.dashboard.facts import ArmFacts, RunFacts
from dipaco.evaluation.perplexity import bits_per_byte
from dipaco.evaluation.tables import link_name, seconds_over_link
from dipaco.runs.reading.progress import (
    RouterCosts,
    StartCosts,
    base_costs,
    bytes_per_machine,
    router_costs,
    start_costs,
)
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm


def curves_of(run: Run, facts: RunFacts, evaluations: Sequence[Evaluated]) -> dict[str, Any]:
    """Arm -> its points, in order. Each has the phase, the cost until then by the report's count
    (for one machine or all), and the perplexity.
    """
    if not evaluations:
        return {}
    base, router = base_costs(run), RouterCosts(0, 0.0)
    test_bytes = Routed.of(run.stage("route")).test_bytes
    of_base = [each for each in evaluations if each.arm == run.plan.base.name]
    curves = {}
    for arm in run.plan.arms:
        of = facts.arms[arm.name]
        start = start_costs(run) if arm.name == MODULAR else StartCosts()
        if arm.is_routed:
            router = router_costs(run)
        mine = [each for each in evaluations if each.arm == arm.name]
        points: list[dict[str, Any]] = [
            {
                "phase": each.phase,
                "steps": base.steps + start.steps + arm.steps_before(each.phase),
                **_spent(arm, of, each.phase, base, start, router.seconds * arm.is_routed),
                "bytes": bytes_per_machine(run, arm, each.phase),
                "perplexity": each.perplexity,
                "bits_per_byte": bits_per_byte(each.perplexity, each.tokens, test_bytes),
                "best_path_perplexity": each.best_path_perplexity,
                "other_rows": each.other_rows,
            }
            for each in mine
        ]
        if of_base and not start.source and points:
            first: dict[str, Any] = {
                "phase": 0,
                "steps": base.steps,
                "tokens": base.tokens,
                "bytes": bytes_per_machine(run, arm, 0),
                "seconds": base.seconds,
                "perplexity": of_base[-1].perplexity,
                "bits_per_byte": bits_per_byte(
                    of_base[-1].perplexity, of_base[-1].tokens, test_bytes
                ),
            }
            if points[0]["phase"]:
                points.insert(0, first)
        for point in points:
            point["link_seconds"] = {
                link_name(link): seconds_over_link(point["seconds"], point["bytes"], link)
                for link in run.config.report.link_megabits
            }
        curves[arm.name] = points
    return curves


def _spent(
    arm: Arm, of: ArmFacts, phase: int, base: Any, start: StartCosts, router_seconds: float
) -> dict[str, Any]:
    """Cost until a phase, as `ReportRow` counts it: tokens of all, seconds of each machine."""
    machines = arm.num_at_once
    seconds = float(of.seconds[:phase][~_missing(of, phase)].sum())
    return {
        "tokens": base.tokens + start.tokens + int(of.tokens[:phase].sum()),
        "seconds": base.seconds
        + start.seconds / start.machines
        + seconds / machines
        + router_seconds,
    }


def _missing(of: ArmFacts, phase: int) -> Any:
    return of.seconds[:phase] != of.seconds[:phase]  # NaN
