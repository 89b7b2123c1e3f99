"""Events of a run: frozen records that print as one readable line.

    str(Event("module_updated", {"phase": 12, "module": "early/0003", "arrived": 16, "fan_in": 16,
                                 "norm": 0.41, "seconds": 1.8}))
    -> phase 12 early/0003 updated: 16 of 16 paths, norm 0.41, 1.8 s

A name in `SENTENCES` prints its sentence. Any other name prints its fields in the order given.
"""

import dataclasses
import string
from collections.abc import Mapping
from typing import Any, Literal

from dipaco.plural import counted

Level = Literal["info", "warning", "error"]  # a fact, someone should look, work was lost
Value = str | int | float | bool | None

SENTENCES = {
    "corpus_prepared": "corpus prepared: {documents:document}, {tokens:token}, "
    "{domains:domain}, {seconds:.1f} s",
    "corpus_note": "text: {note}",
    "domain_left_out": "domain {domain} left out: {reason}",
    "shard_built": "path {path}: {documents:,} documents ({share:.1%}), mostly {domains}",
    "shards_outside_bounds": "shards outside their bounds: {how}",
    "path_trained": "{arm} phase {phase}/{phases}, path {path}: loss {loss:.3f}, "
    "{tokens_per_second:,.0f} tokens/s, {megabytes_exchanged:.1f} MB exchanged, {seconds:.1f} s",
    "module_updated": "phase {phase} {module} updated: {arrived} of {fan_in} paths, "
    "norm {norm:.2f}, {seconds:.1f} s",
    "module_unchanged": "phase {phase} {module} stays as it is: none of its paths took part",
    "documents_rerouted": "documents routed again before phase {phase}: the router agreed with "
    "{agreement:.0%} of the labels and now agrees with {agreement_after:.0%}; {moved:.0%} of the "
    "documents changed path",
    "router_kept": "the router for re-routing is the one after {step:,} of {steps:,} steps, with "
    "the lowest loss on its hold-out: {hold_out_loss:.3f}",
    "rerouted": "re-routed every {every} tokens: perplexity {perplexity:.2f}, {switches:,} changes "
    "of path, {tokens_read_again:,} tokens read again for {tokens:,} predicted",
    "evaluated": "{arm} evaluated after {step} steps: perplexity {perplexity:.2f} on "
    "{documents:,} documents",
    "sampled": "phase {phase} path {path}, {domain}: {prompt} | {text}",
    "machine_changed": "this run began on {then} and continues on {now}: the last bits of its "
    "numbers may differ from those of an uninterrupted run",
    "claim_lost": "{task} was given to another worker: its work here is discarded",
    "saved_part_way": "{task} saved after step {step:,}; the next worker continues it",
    "run_paused": "the run was told to {order}: `dipaco resume` continues it",
    "task_failed": "{task} failed, and is tried again later: {reason}",
    "task_given_up": "{task} has failed: {reason} The command that began the run, or "
    "`dipaco retry`, tries it again",
    "postponed": "{task} postponed: its input is being recomputed ({problem})",
    "lease_ended": "worker {worker} was silent for a whole lease, or its process has ended: its "
    "task was given back",
    "worker_silent": "worker {worker} has sent no heartbeat for {seconds:.0f} s",
    "worker_back": "worker {worker} is back, or has left",
    "refused": "{what} refused by {worker}: {reason} Repeated: {task}",
    "worker_started": "worker {worker} started",
    "worker_left": "worker {worker} has left: {reason}",
    "workers_wanted": "workers wanted: {now} now, {before} before",
    "worker_ended": "worker {worker} ended ({how}), tasks given back: {tasks_returned}; "
    "the next one starts in {wait_seconds:.0f} s",
    "row_begun": "{row} begins with the base model {shared}",
    "base_begun": "base model {shared} begins, for {row}",
    "text_left": "the prepared text {folder} is not taken: {problem}",
    "row_goes_on": "{row} continues from {done:.0%}",
    "row_finished": "{row} finished: perplexity {perplexity:.2f}; {finished} of {total} runs",
    "row_failed": "{row} could not be finished: {problem}",
    "row_ended": "{row}: its process ended ({how}) and is restarted",
    "row_adopted": "{row}: another process works on it already; waiting for that one",
    "resumed": "resumed: {done:,} of {total:,} steps were done",
}


@dataclasses.dataclass(frozen=True)
class Event:
    """One fact of a run."""

    name: str  # snake_case, past tense
    fields: Mapping[str, Value]
    level: Level = "info"

    @property
    def line(self) -> str:
        """The line for a terminal. Warnings and errors are marked."""
        return str(self) if self.level == "info" else f"{self.level}: {self}"

    def __str__(self) -> str:
        if self.name in SENTENCES:
            return _Sentence().format(SENTENCES[self.name], **self.fields)
        fields = ", ".join(f"{name} {_text(value)}" for name, value in self.fields.items())
        return f"{self.name.replace('_', ' ')}: {fields}" if fields else self.name.replace("_", " ")


class _Sentence(string.Formatter):
    """`str.format` with one addition: `{domains:domain}` prints `1 domain`, `2 domains`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if len(format_spec) > 1 and format_spec.isalpha():
            return counted(value, format_spec)
        return super().format_field(value, format_spec)


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
