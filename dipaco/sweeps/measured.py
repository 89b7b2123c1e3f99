"""The results of a sweep by their names in its table, and which of them may be compared.

A perplexity belongs to some documents of some text. Two rows are compared under the seeds for which
both were scored on the same documents: settings give the source of the text and the number of
scored documents, and the ledger has the digest of the text that was read.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.tables import ReportRow
from dipaco.sweeps.shared_base import corpus_digest, digest_of
from dipaco.sweeps.trials import Trial


class Origin(NamedTuple):
    """The recorded origin of a run: its text and program."""

    corpus: str = ""  # digest of its prepared text
    program: str = ""  # the version that it is pinned to
    num_test: int | None = None  # documents of its test split. None = not known


class Measured(NamedTuple):
    """A result under one seed."""

    result: ReportRow
    on: str  # digest of the documents that it was measured on
    program: str


@dataclasses.dataclass(frozen=True)
class NamedRow:
    """A row of the table: one of the sweep, a baseline of it, or its modules routed otherwise."""

    name: str
    row: str  # the sweep's row
    config: RunConfig  # the config of that row
    by_seed: dict[int, Measured]

    @property
    def first(self) -> ReportRow:
        """The result of the first seed."""
        return next(iter(self.by_seed.values())).result

    @property
    def is_main(self) -> bool:
        """True if its modules are routed as the row says."""
        return not self.first.variant

    @property
    def perplexities(self) -> dict[int, float]:
        """Seed -> perplexity."""
        return {seed: measured.result.perplexity for seed, measured in self.by_seed.items()}


def named_rows(
    trials: Sequence[Trial],
    results: Mapping[Trial, Sequence[ReportRow]],
    origins: Mapping[Trial, Origin],
) -> dict[str, NamedRow]:
    """Name in the table -> row, in the order of the table. Arguments as of `make_table`."""
    finished = [trial for trial in trials if trial in results]
    found: dict[str, NamedRow] = {}
    for row in dict.fromkeys(trial.row for trial in finished):
        for trial in (each for each in finished if each.row == row):
            text = {"corpus": corpus_digest(trial.config), "length": trial.config.data.length}
            origin = origins.get(trial, Origin())
            most, there = trial.config.evaluation.max_documents, origin.num_test
            scored = min((n for n in (most, there) if n is not None), default=None)
            on = digest_of(text | {"read": origin.corpus, "scored": scored})
            for result in results[trial]:
                name = name_of(row, result.name)
                if result.variant and result.arm == MODULAR and trial.config.is_one_model:
                    continue  # however a document is routed, the same parameters predict it
                named = found.setdefault(name, NamedRow(name, row, trial.config, {}))
                named.by_seed[trial.seed] = Measured(result, on, origin.program)
    return found


def name_of(row: str, result: str) -> str:
    """The name in the table of a row's result."""
    if result == MODULAR:
        return row
    if result.startswith(f"{MODULAR}_"):
        return row + result.removeprefix(MODULAR)
    return f"{row}/{result}"


def seeds_alike(one: NamedRow, other: NamedRow) -> list[int]:
    """The seeds under which both were scored on the same documents of the same text."""
    return [
        seed
        for seed in sorted(one.by_seed.keys() & other.by_seed.keys())
        if one.by_seed[seed].on == other.by_seed[seed].on
    ]


def are_apart(one: NamedRow, other: NamedRow) -> bool:
    """True if no seed that both have may be compared. Rows without a common seed are apart if they
    were never scored on the same documents.
    """
    if one.by_seed.keys() & other.by_seed.keys():
        return not seeds_alike(one, other)
    ones, others = ({each.on for each in row.by_seed.values()} for row in (one, other))
    return not ones & others
