"""How far a run is, in inner steps."""

from dipaco.runs.run import Run


def progress_of(run: Run, *, with_partial_snapshots: bool = False) -> tuple[int, int]:
    """Inner steps done and in all, over every path of every arm, plus those of the router for
    re-routing: most of a run's time goes into them.

    Args:
      run: whose steps are counted.
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
