"""The report of a finished run, from its facts alone: a table, curves, notes and a picture."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.config import (
    DATA_PARALLEL,
    DENSE,
    DENSE_EQUAL_TOKENS,
    MODULAR,
    ReportSettings,
)
from dipaco.control.planning.summaries import Prepared, Rerouted, Routed
from dipaco.control.planning.tasks import Evaluated
from dipaco.evaluation.perplexity import bits_per_byte
from dipaco.evaluation.style import why_not_drawn
from dipaco.evaluation.tables import (
    BEST_PATH,
    WRONG_PATH,
    PathShare,
    Report,
    ReportRow,
    duration,
    link_name,
    literal,
    notes_as_markdown,
    num_bytes,
    quantity,
    render_markdown,
    seconds_over_link,
)
from dipaco.files import translate_os_errors, write_atomically
from dipaco.model.config import flops_per_token, num_parameters, part_parameters
from dipaco.plural import largest
from dipaco.runs.reading.curves import (
    base_model_of,
    curve_of,
    notes_on_start,
    start_of,
)
from dipaco.runs.reading.progress import (
    RouterCosts,
    base_costs,
    bytes_per_machine,
    router_costs,
)
from dipaco.runs.reading.routing_notes import (
    note_on_ensembles,
    note_on_routing,
    notes_on_bounds,
    notes_on_rerouting,
)
from dipaco.runs.reading.sizes import bytes_left_out
from dipaco.runs.rules import phrase
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm

DENSE_EQUAL_SECONDS = "dense_equal_seconds"
ROW_ORDER = (DENSE, DATA_PARALLEL, DENSE_EQUAL_TOKENS, MODULAR)


def files_of(run: Run) -> dict[str, Path]:
    """The report files by suffix, the one for people first."""
    return {suffix: run.layout.report(suffix) for suffix in ("md", "json", "png")}


def renewed_report(run: Run) -> tuple[Report, dict[str, Path]]:
    """The report of a finished run by its own settings, and its files. They are written again where
    one is missing, or where they were written by other settings.
    """
    report, files = make_report(run), files_of(run)
    is_written = all(file.exists() for file in files.values())
    if not is_written or files["json"].read_bytes() != report.to_json():
        files = write_files(run, report)
    return report, files


def write_files(run: Run, report: Report) -> dict[str, Path]:
    """Writes them into the run folder, and sends them to the run's bucket, if it has one. A picture
    that cannot be drawn is left out, and a note of the report says why.

    report.json is there only while the others are of the same report: a process that ends before
    all are written and sent leaves none.
    """
    from dipaco.evaluation.plots import draw_report

    files = files_of(run)
    with translate_os_errors(files["json"]):
        files["json"].unlink(missing_ok=True)
    if problem := why_not_drawn(lambda file: draw_report(report, file), files["png"]):
        report.notes.append(problem)
        del files["png"]
    content = report.to_json()
    write_atomically(files["md"], _markdown(run, report).encode())
    for suffix in [each for each in files if each != "json"]:
        run.objects.publish(files[suffix], files[suffix].read_bytes())
    run.objects.publish(files["json"], content)
    write_atomically(files["json"], content)
    return files


def make_report(run: Run, settings: ReportSettings | None = None) -> Report:
    """The report of a run whose arms are all evaluated, by its own settings if none are given."""
    settings = settings or run.config.report
    evaluations = run.ledger.facts.evaluations()
    rows = sorted(
        (row for arm in run.plan.arms for row in _rows(run, arm, evaluations, settings)),
        key=_place_in_table,
    )
    routed = Routed.of(run.routing_of(MODULAR, run.config.phases))
    prepared = Prepared.of(run.stage("prepare"))
    topology = run.plan.arm(MODULAR).topology
    return Report(
        name=run.config.name,
        rows=rows,
        equal_seconds=_equal_seconds(run, rows, evaluations),
        base=base_model_of(run, evaluations),
        shards=[
            PathShare(
                path=path,
                documents=documents,
                domains=domains,
                modules=[str(module) for module in topology.modules_of(path)],
            )
            for path, (documents, domains) in enumerate(
                zip(routed.documents, routed.domains, strict=True)
            )
        ],
        curves={arm.name: curve_of(run, arm, evaluations) for arm in run.plan.arms},
        corpus={
            "documents": sum(prepared.documents.values()),
            "train": prepared.documents["train"],
            "tune": prepared.documents["tune"],
            "test": prepared.documents["test"],
            "router": prepared.documents["router"],
            "tokens": prepared.tokens,
            "bytes": prepared.num_bytes,
            "domains": len(prepared.domains),
        },
        notes=_notes(run, rows, prepared, sum(routed.test)),
    )


def _rows(
    run: Run, arm: Arm, evaluations: list[Evaluated], settings: ReportSettings
) -> list[ReportRow]:
    model = run.config.model
    totals, base = run.ledger.progress.training_totals(arm.name), base_costs(run)
    start = start_of(run, arm)
    last = next(e for e in evaluations if (e.arm, e.phase) == (arm.name, arm.phases))
    tokens, machines = base.tokens + start.tokens + totals.tokens, arm.num_at_once
    carried = bytes_per_machine(run, arm, arm.phases)
    machine_seconds = base.seconds + start.seconds / start.machines + totals.seconds / machines
    router = router_costs(run) if arm.is_routed else RouterCosts(0, 0.0)
    machine_seconds += router.seconds
    common: dict[str, Any] = {
        "seed": run.config.seed,
        "parameters_per_path": num_parameters(model),
        "parameters_total": sum(arm.topology.module_sizes(part_parameters(model)).values()),
        "steps": base.steps + start.steps + arm.total_steps,
        "steps_elsewhere": start.steps,
        "tokens": tokens,
        "flops": float(tokens * flops_per_token(model, run.config.data.length) + router.flops),
        "bytes_per_machine": carried,
        "bytes_left_out": bytes_left_out(run, arm),
        "seconds": round(base.seconds + start.seconds + totals.seconds + router.seconds, 3),
        "machine_seconds": round(machine_seconds, 3),
        "link_seconds": {
            link_name(link): round(seconds_over_link(machine_seconds, carried, link), 3)
            for link in settings.link_megabits
        },
    }
    others, of_tune = dict(last.other_rows), last.tune_rows
    wrong, test_bytes = others.pop(WRONG_PATH, None), Routed.of(run.stage("route")).test_bytes

    def row_of(variant: str, perplexity: float, tune: float | None) -> ReportRow:
        costs: dict[str, Any] = common | {"parameters_per_path": _parameters_read(variant, common)}
        return ReportRow(
            name=f"{arm.name}_{variant}" if variant else arm.name,
            variant=variant,
            perplexity=perplexity,
            bits_per_byte=bits_per_byte(perplexity, last.tokens, test_bytes),
            tune_perplexity=tune,
            wrong_path_perplexity=None if variant else wrong,
            **costs,
        )

    rows = [row_of("", last.perplexity, of_tune.get(""))]
    if arm.name == MODULAR and run.plan.reroutes:
        rows += [
            row_of(f"every_{row.every}", row.perplexity, row.tune_perplexity)
            for row in reversed(Rerouted.of(run.stage("reroute")).rows)
            if row.every is not None
        ]
    if last.best_path_perplexity is not None:
        others[BEST_PATH] = last.best_path_perplexity
    return rows + [row_of(each, value, of_tune.get(each)) for each, value in others.items()]


def _parameters_read(variant: str, common: Mapping[str, Any]) -> int:
    """Parameters that a prediction reads: of two paths in an ensemble of two, of all modules in
    another.
    """
    each, total = common["parameters_per_path"], common["parameters_total"]
    if variant == "ensemble_2":
        return min(total, 2 * each)
    return total if variant.startswith("ensemble") else each


def _equal_seconds(
    run: Run, rows: list[ReportRow], evaluations: list[Evaluated]
) -> ReportRow | None:
    """One machine without a link, after the seconds of a machine of the modular model over the
    first of the links. Read off the curves of the dense rows. None without such rows or links.
    """
    by_name = {row.name: row for row in rows}
    if not by_name[MODULAR].bytes_per_machine:
        return None
    (seconds, *_), base, reached = by_name[MODULAR].link_seconds.values(), base_costs(run), []
    for name in {DENSE, DENSE_EQUAL_TOKENS} & by_name.keys():
        row, arm = by_name[name], run.plan.arm(name)
        a_second = arm.total_steps / run.ledger.progress.training_totals(name).seconds
        steps = min(base.steps + int((seconds - base.seconds) * a_second), row.steps)
        at, perplexities = np.transpose(curve_of(run, arm, evaluations))
        share, nats = steps / row.steps, float(np.interp(steps, at, np.log(perplexities)))
        reached.append(
            dataclasses.replace(
                row,
                name=DENSE_EQUAL_SECONDS,
                perplexity=math.exp(nats),
                bits_per_byte=row.bits_per_byte * nats / math.log(row.perplexity),
                tune_perplexity=None,
                steps=steps,
                tokens=round(share * row.tokens),
                flops=share * row.flops,
                seconds=seconds,
                machine_seconds=seconds,
                link_seconds=dict.fromkeys(row.link_seconds, seconds),
            )
        )
    return min(reached, key=lambda row: (row.perplexity, row.steps)) if reached else None


def _place_in_table(row: ReportRow) -> tuple[int, bool]:
    """Rows of one arm stay together, and the bound is the last."""
    return ROW_ORDER.index(row.arm), row.variant == BEST_PATH


def _note_on_quorum(run: Run) -> str:
    """Says which contributions each step took, and why another run may take others."""
    arm, late = run.plan.arm(MODULAR), run.ledger.quorums.late(MODULAR)
    steps = "; ".join(
        f"{module} step {step}: path{'s' * (len(taken) > 1)} "
        f"{', '.join(str(each.path) for each in taken)}"
        for (module, step), taken in late.items()
    )
    count = sum(map(len, late.values()))
    return (
        f"Modules stepped with {arm.quorum:.0%} of their contributions and "
        f"{arm.grace_seconds:g} s of grace (`outer.quorum`): {count} of "
        f"{run.ledger.quorums.num_taken(MODULAR)} were late and joined the step after their own"
        f"{f' ({steps})' if steps else ''}; every other was "
        "taken by the step of its phase. Which are late depends on timing: another run of this "
        "config need not have these digests."
    )


def _notes(run: Run, rows: list[ReportRow], prepared: Prepared, documents: int) -> list[str]:
    prefix_tokens = run.config.data.prefix_tokens
    by_name = {row.name: row.perplexity for row in rows}
    notes = [
        f"Perplexity of {documents:,} test documents, each alone and cut to the context, "
        f"tokens {prefix_tokens} and onward, no special tokens. tune: the same of other documents, "
        "by which settings are to be chosen. bits per byte: the same for each byte of the text, so "
        "also between runs under other tokenizers.",
        "tokens, steps, flops and times include the base model's; time is that of one machine that "
        "does everything.",
        "bytes per machine, as `dipaco plan` counts them: what goes through the network interface "
        "of a machine, down and up together, were the run in a bucket and each path of a phase on "
        "a machine of its own: modules, contributions, snapshots, outer steps and the base model; "
        "where gradients are averaged at every step, a gradient up and the mean down each time. "
        "Text, routing, evaluation and questions to the database are left out.",
        "time at N Mbit/s is that of one such machine: the base model's training, the steps of one "
        "path as measured here, and then its bytes, up and down, one after another over a link of "
        "that rate. No transfer overlaps computing; outer steps and waiting for others are left "
        "out.",
    ]
    if run.rules:
        sources = ", ".join(rule.digest[:10] for rule in run.rules.values())
        notes.append(
            f"Own rules of this run: {phrase(run.rules)} (source {sources}). An outer step and a "
            "router are the modular model's; a path loss trains the base model and the others too."
        )
    if left_out := max(row.bytes_left_out for row in rows):
        notes.append(
            "Contributions leave out rows of tokens that a path does not have: "
            f"{num_bytes(left_out)} of all machines, which the bytes above still count "
            "(`outer.vocabulary_rows`)."
        )
    notes += notes_on_start(run, rows)
    if run.config.num_paths > 1:
        notes.append(note_on_routing(run.config))
    notes += notes_on_bounds(run)
    router = router_costs(run)
    if router.flops:
        notes.append(
            f"flops and times of the modular rows include {quantity(router.flops)} flops and "
            f"{duration(router.seconds)} of fitting the small models that route, on one machine."
        )
    if "modular_ensemble" in by_name:
        notes.append(note_on_ensembles(run.config))
    if any(row.variant == BEST_PATH for row in rows):
        notes.append(
            "modular_best_path picks each document's path after the fact: a bound that no router "
            "can reach."
        )
    tokens = {row.name: row.tokens for row in rows}
    if DENSE in tokens and tokens[DENSE] < tokens[MODULAR]:
        advice = "" if DENSE_EQUAL_TOKENS in by_name else f" `baselines={DENSE_EQUAL_TOKENS}` does."
        notes.insert(
            1,
            f"dense takes the steps of one path and saw {tokens[DENSE] / tokens[MODULAR]:.0%} of "
            "the tokens of modular: a change from it is of paths and of tokens together, and does "
            f"not tell what modules bring.{advice}",
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
    sent = {row.name: row.bytes_per_machine for row in rows}
    if sent[MODULAR] and by_name.keys() & {DENSE, DENSE_EQUAL_TOKENS}:
        notes.append(
            f"{DENSE_EQUAL_SECONDS} is one machine without a link, after as many seconds as a "
            "machine of modular takes over the first of the links: the better of the dense rows "
            "at that moment of their training, or at its end if that came before. A rate that "
            "came down by then would do better. It depends on measured seconds, so it differs "
            "from run to run."
        )
    if sent.get(DATA_PARALLEL) and sent[MODULAR]:  # more than one machine each
        times = sent[DATA_PARALLEL] / sent[MODULAR]
        gap = by_name[MODULAR] / by_name[DATA_PARALLEL] - 1
        machines = run.plan.arm(DATA_PARALLEL).topology.num_paths
        notes.append(
            f"data_parallel is what {machines} machines do in lock-step: one model of a path's "
            f"size under batches {machines} times as large, whose gradients they average at every "
            f"step, at the same rate, for {times:.3g} times these bytes. modular is "
            f"{abs(gap):.1%} {'behind' if gap > 0 else 'ahead'}."
        )
    if run.plan.reroutes:
        notes += notes_on_rerouting(run)
    if run.plan.arm(MODULAR).has_quorum:
        notes.append(_note_on_quorum(run))
    notes += [f"Left out of the corpus: {name} ({why})." for name, why in prepared.left_out.items()]
    return notes + prepared.notes


def _markdown(run: Run, report: Report) -> str:
    return f"""# {literal(run.config.name)}, seed {run.config.seed}

{render_markdown(report.table)}

{notes_as_markdown(report.notes)}

{shares_as_markdown(report.shards)}

![Learning curves, and which domain went to which path](report.png)
"""


def shares_as_markdown(shards: Sequence[PathShare]) -> str:
    """A row for each path."""
    lines = []
    for share in shards:
        domains = literal(largest(share.domains, 4))
        lines.append(f"| {share.path} | {share.documents:,} | {domains} |")
    head = ["| path | documents | largest domains |", "| --- | ---: | :--- |"]
    return "\n".join([*head, *lines])
