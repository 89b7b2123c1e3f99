"""The status of a run, read from its ledger: what `dipaco status --json` prints."""

from typing import Any

from dipaco.config import MODULAR
from dipaco.control.claims.queue import HeldClaim
from dipaco.control.ledger import Ledger
from dipaco.control.members.leaderboard import leaderboard
from dipaco.control.members.members import Member
from dipaco.control.planning.summaries import Routed
from dipaco.runs.forecast.traffic import growth_bytes
from dipaco.runs.reading.blocked import situation_of, why
from dipaco.runs.reading.progress import bytes_per_machine, progress_of, work_left_seconds
from dipaco.runs.reading.releases import samples_as_json
from dipaco.runs.reading.sizes import sizes_of
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import unsent_phases

# The order of the stages. Kinds with the same number run side by side.
STAGE = {
    "prepare": 0,
    "pretrain": 1,
    "route": 2,
    "train": 3,
    "outer": 3,
    "label": 3,
    "check": 3,
    "score": 3,
    "evaluate": 3,
    "sample": 3,
    "reroute": 4,
    "report": 5,
}


def status_of(run: Run, *, with_sizes: bool = True) -> dict[str, Any]:
    """Everything that `dipaco status` shows, as JSON values.

    Args:
      with_sizes: look how much every file takes. Else `stored` is None.

    `modules` and `paths` belong to the modular arm, and `arms` has every arm's.
    """
    ledger, plan = run.ledger, run.plan
    arms: dict[str, Any] = {
        arm.name: {
            "phases": arm.phases,
            "steps": arm.total_steps,
            "num_paths": arm.topology.num_paths,
            "modules": {},
            "paths": {},
            "evaluations": [],
        }
        for arm in (plan.base, *plan.arms)
    }
    for arm, module, phase, digest in ledger.progress.newest_modules():
        arms[arm]["modules"][module] = {"phase": phase, "digest": digest}
    for newest in ledger.progress.newest_phases():
        arms[newest.arm]["paths"][str(newest.path)] = {
            "phase": newest.phase + 1,
            "step": newest.step,
            "loss": newest.loss,
            "tokens": newest.tokens,
        }
    for fact in ledger.facts.evaluations():
        arms[fact.arm]["evaluations"].append({"phase": fact.phase, "perplexity": fact.perplexity})
    unfinished = ledger.queue.unfinished()
    has_quorum = run.plan.arm(MODULAR).has_quorum
    in_grace = ledger.quorums.in_grace(MODULAR) if has_quorum else []
    counts = ledger.queue.task_counts()
    done = [kind for kind in STAGE if _is_done(kind, counts)]
    return {
        "name": run.config.name,
        "seed": run.config.seed,
        "rules": {kind: rule._asdict() for kind, rule in run.rules.items()},
        "why": why(situation_of(ledger, run.layout.root, in_grace))._asdict(),
        "failures": [
            {**failure._asdict(), "task": str(failure.task)} for failure in ledger.failures.list()
        ],
        "finished": not unfinished and "report" in {stage.stage for stage in ledger.facts.stages()},
        "progress": _progress_of(run),
        "stages_done": done,
        "stages": {
            f"{stage.stage}@{stage.phase}" if stage.phase else stage.stage: {
                "seconds": stage.seconds,
                **stage.summary,
            }
            for stage in ledger.facts.stages()
        },
        "samples": _newest_samples(ledger),
        "modules": arms[MODULAR]["modules"],
        "paths": arms[MODULAR]["paths"],
        "arms": arms,
        "tasks": {
            f"{kind} {arm}".strip(): states for (kind, arm), states in sorted(counts.items())
        },
        "unfinished": [
            {**each.task._asdict(), "state": each.state, "attempt": each.attempt}
            for each in unfinished
        ],
        "outside_bounds": _outside_bounds(run),
        "stored": sizes_of(run) if with_sizes else None,
        "growth": growth_bytes(run.config),
        "unsent_snapshots": unsent_phases(run),
        "is_cleaned": ledger.cleanings.removed() is not None,
        **_status_of_work(run),
    }


def _newest_samples(ledger: Ledger) -> list[dict[str, Any]]:
    """Continuations of the run's prompts by the newest release of the modular arm."""
    newest = ledger.facts.newest_samples(MODULAR)
    return [] if newest is None else samples_as_json([newest])


def _outside_bounds(run: Run) -> str:
    """A sentence that names shards of the newest routing outside their bounds, or nothing."""
    routings = run.ledger.facts.routings()
    return Routed.of(routings[-1]).outside_bounds if routings else ""


def _progress_of(run: Run) -> dict[str, Any]:
    """Inner steps of all paths of all arms, and the seconds that one worker still takes."""
    done, total = progress_of(run, with_partial_snapshots=True)
    return {"steps": done, "total_steps": total, "work_left_seconds": work_left_seconds(run)}


def _status_of_work(run: Run) -> dict[str, Any]:
    """Workers, machines, bytes, and what was refused or rolled back."""
    ledger = run.ledger
    held = {claim.worker: claim for claim in ledger.queue.held()}
    machines = ledger.progress.machines()
    return {
        "command": ledger.meta.get("command") or "run",
        "workers": {
            member.name: _status_of_worker(member, held.get(member.name))
            for member in ledger.members.as_seen_here()
        },
        "machines": machines,
        "bits": _bits(run, machines),
        "quorum": _quorum_of(run),
        "refusals": [refusal._asdict() for refusal in ledger.redos.refusals()],
        "swarms": ledger.swarms.statuses(),
        "volunteers": [
            each._asdict() for each in leaderboard(ledger.swarms, run.config.inner.batch_size)
        ],
        "locked_credentials": [each._asdict() for each in ledger.swarms.locked()],
        "swarm_evidence": ledger.swarms.evidence(),
        "num_refusals": ledger.redos.num_refusals(),
        "rollbacks": [each._asdict() for each in ledger.rollbacks.list()],
        "bytes": ledger.progress.bytes_by_kind(),
        "bytes_per_machine": _bytes_per_machine(run),
        "goodput": goodput_of(ledger),
    }


def _status_of_worker(member: Member, claim: HeldClaim | None) -> dict[str, Any]:
    return {
        "state": member.presence,
        "host": member.host,
        "machine": member.machine,
        "task": claim and str(claim.task),
        "task_seconds": claim and claim.held_seconds,
        "stalled_seconds": claim and claim.stalled_seconds,
        "silent_seconds": member.silent_seconds,
        "participation": member.participation,
        "committed_tasks": member.committed_tasks,
        "lost_tasks": member.lost_tasks,
        "last_words": member.last_words,
    }


def _bytes_per_machine(run: Run) -> dict[str, int]:
    """Bytes of the modular model through each machine's interface: until now, and of the run."""
    arm = run.plan.arm(MODULAR)
    reached = run.phases_reached
    until_now = 0 if reached < 0 else bytes_per_machine(run, arm, reached)
    return {"until_now": until_now, "of_the_run": bytes_per_machine(run, arm, arm.phases)}


def _bits(run: Run, machines: dict[str, int]) -> str:
    """A sentence that says whether the run gives the same bits when it is done again."""
    if run.plan.arm(MODULAR).has_quorum:
        return "not promised: with a quorum they depend on who is late"
    if len(machines) <= 1:
        return "the same on every worker: all are of one kind"
    return "within a tolerance: workers of several kinds took part"


def _quorum_of(run: Run) -> dict[str, Any] | None:
    """The contributions that each module's newest step took, and every late one. None without a
    quorum.

    A contribution that is not late was taken by the step of its phase.
    """
    arm, quorums = run.plan.arm(MODULAR), run.ledger.quorums
    if not arm.has_quorum:
        return None
    late = quorums.late(MODULAR)
    return {
        "share": arm.quorum,
        "grace_seconds": arm.grace_seconds,
        "in_grace": [
            {"module": str(at.module), "phase": at.phase, "seconds_left": at.seconds_left}
            for at in quorums.in_grace(MODULAR)
        ],
        "taken": quorums.num_taken(MODULAR),
        "late": [
            {"module": str(module), "phase": each.phase, "path": each.path, "step": step}
            for (module, step), of_step in late.items()
            for each in of_step
        ],
        "newest_steps": {
            str(module): {
                "step": step,
                "paths": [each.path for each in of_step if not each.is_late],
                "late_paths": [each.path for each in of_step if each.is_late],
            }
            for (module, step), of_step in quorums.newest(MODULAR).items()
        },
    }


def goodput_of(ledger: Ledger) -> dict[str, float]:
    """Tokens per second of all workers' time. Only recorded work counts."""
    members = ledger.members.list()
    live = sum(member.live_seconds for member in members)
    committed = sum(member.committed_seconds for member in members)
    tokens = sum(ledger.progress.tokens_by_arm().values())
    return {
        "tokens": tokens,
        "worker_seconds": live,
        "committed_seconds": committed,
        "participation": min(1.0, committed / max(live, 1e-9)),
        "tokens_per_worker_second": tokens / max(live, 1e-9),
    }


def _is_done(kind: str, counts: dict[tuple[str, str], Any]) -> bool:
    """True if all tasks of a kind are done, and no more can come since a later stage has begun."""
    states = [set(by_state) for (of, _), by_state in counts.items() if of == kind]
    is_last = kind == "report"
    has_later = any(STAGE[of] > STAGE[kind] for of, _ in counts)
    return bool(states) and all(state == {"done"} for state in states) and (has_later or is_last)
