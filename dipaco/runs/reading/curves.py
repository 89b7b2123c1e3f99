"""The curves of a report: test perplexity by steps, from the base model or the modules of another
run on.
"""

from collections.abc import Sequence

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Evaluated
from dipaco.evaluation.tables import BaseModel, ReportRow
from dipaco.runs.reading.progress import StartCosts, base_costs, start_costs
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm


def start_of(run: Run, arm: Arm) -> StartCosts:
    """Costs of the modules that an arm starts from. Dense arms start from the base model."""
    return start_costs(run) if arm.name == MODULAR else StartCosts()


def steps_before(run: Run, arm: Arm) -> int:
    """Steps of one path before the first step of the arm in this run."""
    return base_costs(run).steps + start_of(run, arm).steps


def curve_of(run: Run, arm: Arm, evaluations: Sequence[Evaluated]) -> list[tuple[int, float]]:
    """(steps, perplexity) of an arm: first of what it starts from, where that is known."""
    before, start = steps_before(run, arm), start_of(run, arm)
    first = [e.perplexity for e in evaluations if e.arm == run.plan.base.name]
    if start.source:
        text = run.stage("prepare").artifacts["corpus"].digest
        is_known = start.perplexity is not None and start.corpus == text
        first = [start.perplexity] if is_known else []
    return [(before, perplexity) for perplexity in first] + [
        (before + arm.steps_before(e.phase), e.perplexity) for e in evaluations if e.arm == arm.name
    ]


def base_model_of(run: Run, evaluations: Sequence[Evaluated]) -> BaseModel | None:
    """None where no arm starts from it, but from the modules of another run."""
    if all(start_of(run, arm).source for arm in run.plan.arms):
        return None
    steps = base_costs(run).steps
    of_base = (e.perplexity for e in evaluations if e.arm == run.plan.base.name)
    return next((BaseModel(steps=steps, perplexity=each) for each in of_base), None)


def notes_on_start(run: Run, rows: Sequence[ReportRow]) -> list[str]:
    """Says how many of the modular model's steps were taken in another run, and in which."""
    start = start_costs(run)
    if not start.source:
        return []
    (steps,) = {row.steps for row in rows if row.name == MODULAR}
    return [
        f"modular has taken {steps:,} steps, of these {start.steps:,} as modules of "
        f"{start.source} and {base_costs(run).steps:,} as its base model; tokens, flops, bytes and "
        "times include those too."
    ]
