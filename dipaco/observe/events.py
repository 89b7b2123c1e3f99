"""Events: what can happen in a run, as small frozen records that print as a line a person can read.

    str(Event("module_updated", {"phase": 12, "module": "early/0003", "arrived": 16, "fan_in": 16,
                                 "norm": 0.41, "seconds": 1.8}))
    -> phase 12 early/0003 updated: 16 of 16 paths, norm 0.41, 1.8 s

A name with a sentence in `SENTENCES` prints it; any other prints its fields in the order given.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

Level = Literal["info", "warning", "error"]  # a fact; someone should look; work was lost
Value = str | int | float | bool | None

SENTENCES = {
    "corpus_prepared": "corpus prepared: {documents:,} documents, {tokens:,} tokens, "
    "{domains} domains, {seconds:.1f} s",
    "domain_left_out": "domain {domain} left out: {reason}",
    "shard_built": "path {path}: {documents:,} documents ({share:.1%}), mostly {domains}",
    "path_trained": "{arm} phase {phase} of {phases}, path {path}: loss {loss:.3f}, "
    "{tokens_per_second:,.0f} tokens/s, {megabytes_sent:.1f} MB exchanged, {seconds:.1f} s",
    "module_updated": "phase {phase} {module} updated: {arrived} of {fan_in} paths, "
    "norm {norm:.2f}, {seconds:.1f} s",
    "module_waited": "phase {phase} {module} stays as it is: none of its paths took part",
    "routed_anew": "documents routed anew before phase {phase}: the router met {agreement:.0%} of "
    "the labels and meets {agreement_after:.0%}; {moved:.0%} of the documents changed their path",
    "router_kept": "the router for re-routing is kept as it was after {step:,} of {steps:,} steps, "
    "when it did best on its hold-out: loss {hold_out_loss:.3f}",
    "rerouted": "re-routed every {every} tokens: perplexity {perplexity:.2f}, {switches:,} changes "
    "of path, {tokens_read_again:,} tokens read again for {tokens:,} predicted",
    "evaluated": "{arm} evaluated after {step} steps: perplexity {perplexity:.2f} on "
    "{documents:,} documents",
    "machine_changed": "this run began on {then} and goes on here, on {now}: the last bits of its "
    "numbers may differ from those of an undisturbed run",
    "claim_lost": "{task} is another worker's by now: what was done here does not count",
    "handed_on": "{task} saved after step {step:,}, for the next worker",
    "told_to_wait": "the run was told to {order}: `dipaco resume` lets it go on",
    "mended": "{task} waits for what it needs to be made again: {problem}",
    "lease_ended": "worker {worker} was silent for a whole lease: its task went back",
    "worker_silent": "worker {worker} has been silent for {seconds:.0f} s",
    "worker_back": "worker {worker} is back, or has left",
    "refused": "{what} refused by {worker}: {reason} Done again: {task}",
    "worker_started": "worker {worker} started",
    "worker_let_go": "worker {worker} has left: {reason}",
    "workers_wanted": "workers wanted: {now} now, {before} before",
    "worker_ended": "worker {worker} ended ({how}), tasks given back: {tasks_returned}; "
    "the next one starts in {wait_seconds:.0f} s",
    "row_begun": "{row} begins with the base model {shared}",
    "base_begun": "base model {shared} begins, for {row}",
    "row_goes_on": "{row} goes on from {done:.0%}",
    "row_finished": "{row} finished: perplexity {perplexity:.2f}; {finished} of {total} runs",
    "row_failed": "{row} could not be finished: {problem}",
    "row_ended": "{row}: its process ended ({how}) and is started again",
    "row_adopted": "{row}: another process works on it already; waiting for that one",
    "resumed": "resumed: {done:,} of {total:,} steps were done",
}


@dataclasses.dataclass(frozen=True)
class Event:
    """One fact of a run."""

    name: str  # snake_case, past tense
    fields: Mapping[str, Value]
    level: Level = "info"

    def __str__(self) -> str:
        if self.name in SENTENCES:
            return SENTENCES[self.name].format(**self.fields)
        told = ", ".join(f"{name} {_text(value)}" for name, value in self.fields.items())
        return f"{self.name.replace('_', ' ')}: {told}" if told else self.name.replace("_", " ")


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
