"""Tells a person, and the run's event file, what the loop does."""

import sys
import time
from typing import Self

from dipaco.config import RunConfig
from dipaco.control.tasks import (
    Claim,
    Contribution,
    Evaluated,
    Fact,
    ModuleReady,
    PathTrained,
    StageDone,
)
from dipaco.data.prepare import PrepareProgress
from dipaco.errors import DipacoError
from dipaco.evaluation.tables import render_text
from dipaco.observe.events import Event, Value
from dipaco.observe.progress import Progress
from dipaco.observe.writers import EventWriter, JsonLines, Several, TensorBoard
from dipaco.runs.progress import progress_of
from dipaco.runs.run import Run
from dipaco.workers.tasks.report import files_of, make_report, write_files

SECONDS_BETWEEN_MESSAGES = 2.0
SECONDS_BETWEEN_COUNTS = 10.0


class ConsoleReporter:
    """A watcher of the loop: one bar for the whole job, a line for every fact, the same as
    records in events.jsonl.
    """

    def __init__(self, run: Run, *, tensorboard: bool = False):
        self._run = run
        done, total = progress_of(run, with_partial_snapshots=True)
        writers: list[EventWriter] = [JsonLines(run.layout.events, clock=time.time)]
        if tensorboard:
            writers.append(TensorBoard(run.layout.tensorboard))
        self._log = Several(*writers)
        self._bar = Progress("prepare", total, done_steps=done)
        self._done, self._total = done, total
        self._began_seconds = self._said_seconds = 0.0
        self._counted_seconds = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        self._log.close()

    def greet(self, *, is_new: bool) -> None:
        """What the run is, or how far it was."""
        if is_new:
            self._say(title_of(self._run.config))
        elif self._run.ledger.queue.unfinished():
            self._tell(Event("resumed", {"done": self._done, "total": self._total}))

    def compare_machines(self, then: str, now: str) -> None:
        """Warns where the last bits of the results may depend on the change."""
        if then != now:
            self._tell(Event("machine_changed", {"then": then, "now": now}, "warning"))

    def task_started(self, claim: Claim) -> None:
        self._began_seconds = time.monotonic()
        done = None  # by others as well; it takes a look at the ledger
        if self._began_seconds - self._counted_seconds > SECONDS_BETWEEN_COUNTS:
            self._counted_seconds = self._began_seconds
            done, _ = progress_of(self._run, with_partial_snapshots=True)
        self._bar.begin(str(claim.task), done_steps=done)

    def prepare_progressed(self, progress: PrepareProgress) -> None:
        if progress.message:
            self._say(progress.message)
        elif time.monotonic() - self._said_seconds > SECONDS_BETWEEN_MESSAGES:
            self._said_seconds = time.monotonic()
            of = f" of {progress.total / 1e6:.1f}" if progress.total else ""
            self._say(f"{progress.stage}: {progress.done / 1e6:.1f}{of} MB")

    def step_taken(self, claim: Claim, loss: float, tokens: int) -> None:
        self._bar.advance(1, tokens=tokens, loss=loss)

    def claim_lost(self, claim: Claim) -> None:
        self._tell(Event("claim_lost", {"task": str(claim.task)}, "warning"))

    def paused(self) -> None:
        self._tell(Event("told_to_wait", {"order": "pause"}))

    def task_released(self, claim: Claim, step: int) -> None:
        self._tell(Event("handed_on", {"task": str(claim.task), "step": step}))

    def task_postponed(self, claim: Claim, error: DipacoError) -> None:
        self._tell(Event("mended", {"task": str(claim.task), "problem": str(error)}, "warning"))

    def task_finished(self, claim: Claim, facts: list[Fact]) -> None:
        for fact in facts:
            match fact:
                case StageDone(stage="prepare"):
                    self._tell_corpus(fact)
                case StageDone(stage="route"):
                    self._tell_alternation(fact)
                    self._tell_shards(fact)
                case StageDone(stage="reroute"):
                    self._tell_rerouting(fact)
                case PathTrained():
                    self._bar.advance(0, bytes_sent=fact.bytes_down + fact.bytes_up)
                    self._tell_path(fact)
                case ModuleReady() if claim.task.kind == "outer":
                    self._tell_module(fact)
                case Evaluated():
                    self._tell_evaluation(fact)
                case ModuleReady() | Contribution():
                    pass

    def _tell_corpus(self, fact: StageDone) -> None:
        summary = fact.summary
        self._tell(
            Event(
                "corpus_prepared",
                {
                    "documents": sum(summary["documents"].values()),
                    "tokens": summary["tokens"],
                    "domains": len(summary["domains"]),
                    "seconds": fact.seconds,
                },
            )
        )
        for domain, reason in summary["left_out"].items():
            self._tell(Event("domain_left_out", {"domain": domain, "reason": reason}, "warning"))
        for note in summary["notes"]:
            self._say(note)

    def _tell_shards(self, fact: StageDone) -> None:
        documents, domains = fact.summary["documents"], fact.summary["domains"]
        for path, (count, by_domain) in enumerate(zip(documents, domains, strict=True)):
            largest = sorted(by_domain.items(), key=lambda item: -item[1])[:3]
            self._tell(
                Event(
                    "shard_built",
                    {
                        "path": path,
                        "documents": count,
                        "share": count / max(sum(documents), 1),
                        "domains": ", ".join(
                            f"{name} {n / max(count, 1):.0%}" for name, n in largest
                        ),
                    },
                )
            )

    def _tell_alternation(self, fact: StageDone) -> None:
        if fact.phase:
            told = ("agreement", "agreement_after", "moved")
            fields = {name: fact.summary[name] for name in told}
            self._tell(Event("routed_anew", {"phase": fact.phase + 1, **fields}))

    def _tell_rerouting(self, fact: StageDone) -> None:
        if (loss := fact.summary["hold_out_loss"]) is not None:
            steps = {"step": fact.summary["step"], "steps": self._run.config.reroute.steps}
            self._tell(Event("router_kept", {**steps, "hold_out_loss": loss}))
        for row in fact.summary["rows"]:
            if row["every"] is not None:
                self._tell(Event("rerouted", row))

    def _tell_path(self, fact: PathTrained) -> None:
        fields: dict[str, Value] = {
            "arm": fact.arm,
            "path": str(fact.path),
            "phase": fact.phase + 1,
            "phases": self._run.plan.arm(fact.arm).phases,
            "step": fact.step,
            "steps": len(fact.losses),
            "tokens": fact.tokens,
            "loss": fact.losses[-1] if fact.losses else float("nan"),
            "mean_loss": sum(fact.losses) / max(len(fact.losses), 1),
            "tokens_per_second": fact.tokens / max(fact.seconds, 1e-9),
            "megabytes_sent": (fact.bytes_down + fact.bytes_up) / 1e6,
            "seconds": fact.seconds,
        }
        self._tell(Event("path_trained", fields))

    def _tell_module(self, fact: ModuleReady) -> None:
        if fact.gradient_norm is None:
            self._tell(Event("module_waited", {"phase": fact.phase, "module": str(fact.module)}))
            return
        arm = self._run.plan.arm(fact.arm)
        fields: dict[str, Value] = {
            "arm": fact.arm,
            "module": str(fact.module),
            "phase": fact.phase,
            "arrived": len(fact.moves.norms)
            if fact.moves is not None
            else len(arm.paths_through(fact.module, fact.phase - 1)),
            "fan_in": arm.topology.fan_in(fact.module),
            "norm": fact.gradient_norm,
            "seconds": time.monotonic() - self._began_seconds,
        }
        self._tell(Event("module_updated", fields))

    def _tell_evaluation(self, fact: Evaluated) -> None:
        arm = self._run.plan.arm(fact.arm)
        fields: dict[str, Value] = {
            "arm": fact.arm,
            "phase": fact.phase,
            "step": arm.steps_before(fact.phase),
            "perplexity": fact.perplexity,
            "documents": fact.documents,
        }
        self._tell(Event("evaluated", fields))

    def _tell(self, event: Event) -> None:
        self._log.write(event)
        self._say(f"{event.level}: {event}" if event.level != "info" else str(event))

    def _say(self, text: str) -> None:
        self._bar.say(text)


def title_of(config: RunConfig) -> str:
    """A run in a line."""
    return (
        f"{config.name}, seed {config.seed}: {config.num_paths} paths, "
        f"{len(config.topology.modules)} modules"
    )


def print_results(run: Run) -> None:
    """The table at the end, and where it is kept; written again where somebody has removed it."""
    report = make_report(run)
    files = files_of(run).values()
    if run.address.remote is None and not all(file.exists() for file in files):
        write_files(run, report)
    print(f"\n{render_text(report.rows)}\n")
    for note in report.notes:
        print(f"- {note}")
    print(f"\nWritten: {', '.join(map(run.address.place_of, files))}")
    sys.stdout.flush()
