"""`report`: the table, the curves and the picture of a finished run, from its facts alone."""

import time
from pathlib import Path
from typing import Any

from dipaco.config import DENSE, DENSE_EQUAL_TOKENS, MODULAR
from dipaco.control.plan import Arm
from dipaco.control.tasks import Claim, Evaluated, Fact, StageDone
from dipaco.evaluation.tables import PathShare, Report, ReportRow, render_markdown
from dipaco.files import file_digest, translate_os_errors, write_atomically
from dipaco.model.config import flops_per_token, num_parameters, part_parameters
from dipaco.receipt import Receipt
from dipaco.runs.run import Run

ROW_ORDER = (DENSE, DENSE_EQUAL_TOKENS, MODULAR, "modular_best_path")


def write_report(run: Run, claim: Claim) -> list[Fact]:
    """Writes report.json, report.md and report.png."""
    started = time.monotonic()
    report = make_report(run)
    files = write_files(run, report)
    for file in files.values():
        run.objects.publish(file)
    return [
        StageDone(
            stage="report",
            artifacts={
                f"report.{suffix}": Receipt(file.name, file_digest(file), file.stat().st_size)
                for suffix, file in files.items()
            },
            summary={row.name: row.perplexity for row in report.rows},
            seconds=time.monotonic() - started,
        )
    ]


def files_of(run: Run) -> dict[str, Path]:
    """The report files by suffix, the one for people first."""
    return {suffix: run.layout.report(suffix) for suffix in ("md", "json", "png")}


def write_files(run: Run, report: Report) -> dict[str, Path]:
    """Writes them into the run folder; written again, only times differ."""
    from dipaco.evaluation.plots import draw_report

    files = files_of(run)
    write_atomically(files["json"], report.to_json())
    write_atomically(files["md"], _markdown(run, report).encode())
    with translate_os_errors(files["png"]):
        draw_report(report, files["png"])
    return files


def make_report(run: Run) -> Report:
    """The report of a run whose arms are all evaluated."""
    evaluations = run.ledger.facts.evaluations()
    rows = sorted(
        (row for arm in run.plan.arms for row in _rows(run, arm, evaluations)),
        key=_place_in_table,
    )
    routed = run.routing_of(MODULAR, run.config.phases).summary
    prepared = run.stage("prepare").summary
    base_steps = run.plan.base.total_steps
    return Report(
        rows=rows,
        shards=[
            PathShare(path=path, documents=documents, domains=domains)
            for path, (documents, domains) in enumerate(
                zip(routed["documents"], routed["domains"], strict=True)
            )
        ],
        curves={arm.name: _curve(run, arm, evaluations) for arm in run.plan.arms},
        losses={
            arm.name: {
                str(path): [(base_steps + step + 1, loss) for step, loss in enumerate(losses)]
                for path, losses in run.ledger.progress.losses(arm.name).items()
            }
            for arm in run.plan.arms
        },
        corpus={
            "documents": sum(prepared["documents"].values()),
            "train": prepared["documents"]["train"],
            "valid": prepared["documents"]["valid"],
            "router": prepared["documents"]["router"],
            "tokens": prepared["tokens"],
            "bytes": prepared["bytes"],
            "domains": len(prepared["domains"]),
        },
        notes=_notes(run, rows, prepared, sum(routed["valid"])),
    )


def _rows(run: Run, arm: Arm, evaluations: list[Evaluated]) -> list[ReportRow]:
    model = run.config.model
    totals, base = (run.ledger.progress.training_totals(name) for name in (arm.name, "base"))
    last = next(e for e in evaluations if (e.arm, e.phase) == (arm.name, arm.phases))
    tokens = base.tokens + totals.tokens
    in_part = part_parameters(model)
    common: dict[str, Any] = {
        "seed": run.config.seed,
        "parameters_per_path": num_parameters(model),
        "parameters_total": sum(
            in_part[part]
            for module in arm.topology.modules
            for part in arm.topology.parts_of(module)
        ),
        "steps": run.plan.base.total_steps + round(arm.path_steps / arm.topology.num_paths),
        "tokens": tokens,
        "flops": float(tokens * flops_per_token(model, run.config.data.length)),
        # A single path exchanges nothing.
        "bytes_sent": totals.bytes_sent if arm.topology.num_paths > 1 else 0,
        "seconds": round(base.seconds + totals.seconds, 3),
    }
    rows = [ReportRow(name=arm.name, perplexity=last.perplexity, **common)]
    if arm.name == MODULAR and run.plan.reroutes:
        rows += [
            ReportRow(
                name=f"{arm.name}_every_{row['every']}", perplexity=row["perplexity"], **common
            )
            for row in reversed(run.stage("reroute").summary["rows"])
            if row["every"] is not None
        ]
    if last.best_path_perplexity is not None:
        rows.append(
            ReportRow(name=f"{arm.name}_best_path", perplexity=last.best_path_perplexity, **common)
        )
    return rows


def _place_in_table(row: ReportRow) -> int:
    """Rows of one arm stay together, re-routed ones after the row that is routed once."""
    name = MODULAR if row.name.startswith(f"{MODULAR}_every_") else row.name
    return ROW_ORDER.index(name)


def _curve(run: Run, arm: Arm, evaluations: list[Evaluated]) -> list[tuple[int, float]]:
    base = run.plan.base
    start = [(base.total_steps, e.perplexity) for e in evaluations if e.arm == base.name]
    return start + [
        (base.total_steps + arm.steps_before(e.phase), e.perplexity)
        for e in evaluations
        if e.arm == arm.name
    ]


def _notes_on_rerouting(run: Run) -> list[str]:
    """What changing the path within a document costs."""
    summary = run.stage("reroute").summary
    rows = [row for row in summary["rows"] if row["every"] is not None]
    costs = "; ".join(
        f"every {row['every']} tokens: {row['switches']:,} changes, "
        f"{row['tokens_read_again'] / row['tokens']:.2f} tokens read again for each predicted"
        for row in rows
    )
    kept = ""
    if summary.get("hold_out_loss") is not None:  # runs of older versions have none
        kept = (
            f" That router is kept as it was after {summary['step']:,} of "
            f"{run.config.reroute.steps:,} steps, when it did best on documents that did not train "
            "it."
        )
    return [
        "modular_every_N asks a router again after every N tokens; a path that takes over reads "
        f"the text again from its beginning ({costs}).{kept}"
    ]


def _note_on_quorum(run: Run) -> str:
    """Which contributions each step took, and why another run may take others."""
    arm, late = run.plan.arm(MODULAR), run.ledger.quorums.late(MODULAR)
    steps = "; ".join(
        f"{module} step {step}: path{'s' * (len(taken) > 1)} "
        f"{', '.join(str(each.path) for each in taken)}"
        for (module, step), taken in late.items()
    )
    count = sum(map(len, late.values()))
    return (
        f"Modules stepped with {arm.quorum:.0%} of their contributions and {arm.grace_seconds:g} s "
        f"of grace (`outer.quorum`): {count} of {run.ledger.quorums.num_taken(MODULAR)} were late "
        f"and joined the step after their own{f' ({steps})' if steps else ''}; every other was "
        "taken by the step of its phase. Which are late depends on timing: another run of this "
        "config need not have these digests."
    )


def _notes(run: Run, rows: list[ReportRow], prepared: dict[str, Any], documents: int) -> list[str]:
    prefix_tokens = run.config.data.prefix_tokens
    by_name = {row.name: row.perplexity for row in rows}
    notes = [
        f"Perplexity of {documents:,} validation documents, each alone and cut to the context, "
        f"tokens {prefix_tokens} and onward, no special tokens.",
        "tokens, steps, flops and seconds include the base model's; bytes sent are contributions "
        "up and modules down, had every path been on a machine of its own.",
    ]
    if "modular_best_path" in by_name:
        notes.append(
            "modular_best_path picks each document's path after the fact: a bound that no router "
            "can reach."
        )
    if DENSE_EQUAL_TOKENS in by_name:
        verdict = (
            "wins here: early in training, more tokens for one small model beat many paths"
            if by_name[DENSE_EQUAL_TOKENS] < by_name[MODULAR]
            else "loses to the modular model here"
        )
        notes.append(
            "dense_equal_tokens saw the tokens of all paths together, one after another, in one "
            f"model; it {verdict}."
        )
    if run.plan.reroutes:
        notes += _notes_on_rerouting(run)
    if run.plan.arm(MODULAR).has_quorum:
        notes.append(_note_on_quorum(run))
    notes += [
        f"Left out of the corpus: {name} ({why})." for name, why in prepared["left_out"].items()
    ]
    return notes + list(prepared["notes"])


def _markdown(run: Run, report: Report) -> str:
    notes = "\n".join(f"- {note}" for note in report.notes)
    shards = "\n".join(
        f"| {share.path} | {share.documents:,} | {_largest(share.domains)} |"
        for share in report.shards
    )
    return f"""# {run.config.name}, seed {run.config.seed}

{render_markdown(report.rows)}

{notes}

| path | documents | largest domains |
| --- | ---: | :--- |
{shards}

![Learning curves, and which domain went to which path](report.png)
"""


def _largest(domains: dict[str, int], count: int = 4) -> str:
    total = sum(domains.values())
    largest = sorted(domains.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {number / total:.0%}" for name, number in largest)
