"""The notes below a sweep's table, in sentences."""

import math
from collections.abc import Iterable, Mapping, Sequence

from dipaco.evaluation.tables import BEST_PATH
from dipaco.runs.version import digest_in
from dipaco.sweeps.measured import NamedRow, are_apart
from dipaco.sweeps.pairing import LEAST_SEEDS, in_words


def table_notes(rows: Mapping[str, NamedRow]) -> list[str]:
    """The notes.

    Args:
      rows: name in the table -> row. Others are compared with the first.
    """
    main = {name: row for name, row in rows.items() if row.is_main}
    num_seeds = max((len(row.by_seed) for row in rows.values()), default=0)
    notes = [
        "tune: perplexity of the documents to choose a row by, as the best of several rates. "
        "perplexity is that of test documents, which no choice has seen.",
        "perplexity is the mean over seeds; ± is half the 95 % interval of the difference, paired "
        "by seed (Student's t). A difference is resolved where its interval excludes zero; of many "
        "comparisons, one in twenty would be by chance.",
        "wrong path: the perplexity of each document under the paths that it was not routed to, "
        "the mean of their log-likelihoods.",
        "held equal: what the row has in common with the first; a difference in anything else "
        "may be what made it better or worse.",
    ]
    if num_seeds < LEAST_SEEDS:
        notes.append(
            f"Intervals over seeds need {LEAST_SEEDS} seeds (`--seeds 0,1,2`), and here are "
            f"{num_seeds}: no difference is resolved."
        )
    if len(main) < len(rows):
        notes.append(
            f"NAME_{BEST_PATH} picks each document's path after the fact: a bound that no router "
            "can reach. It takes no part in the orderings, nor do rows of the same modules routed "
            "otherwise or as an ensemble."
        )
    if diverged := [name for name, row in main.items() if not _is_finite(row)]:
        notes.append(
            "A result that is not finite, under a seed of both, leaves rows uncompared: "
            f"{', '.join(diverged)}."
        )
    return [*notes, *_of_other_text(list(main.values())), *_of_programs(list(main.values()))]


def _is_finite(row: NamedRow) -> bool:
    return all(math.isfinite(measured.result.perplexity) for measured in row.by_seed.values())


def _of_other_text(rows: Sequence[NamedRow]) -> Iterable[str]:
    """Rows that are not compared with the first row, or under some seeds only."""
    if apart := [row.name for row in rows if are_apart(rows[0], row)]:
        yield (
            "On other text than the first row, or scored on other documents of it "
            f"(`evaluation.max_documents`), and not compared with it: {', '.join(apart)}."
        )
    if len({tuple(sorted(row.by_seed)) for row in rows}) > 1:
        yield (
            "Not all rows have the same seeds, so their means are not of the same: differences "
            "are over the seeds that both rows have."
        )


def _of_programs(rows: Sequence[NamedRow]) -> Iterable[str]:
    """The program of each result, if there are several."""
    found: dict[str, dict[str, list[int]]] = {}  # sources -> row -> seeds
    versions: dict[str, str] = {}  # sources -> their description
    for row in rows:
        for seed, measured in sorted(row.by_seed.items()):
            if measured.program:
                sources = digest_in(measured.program) or measured.program
                versions.setdefault(sources, measured.program)
                found.setdefault(sources, {}).setdefault(row.name, []).append(seed)
    if len(found) > 1:
        of_each = "; ".join(
            f"{versions[sources]}: "
            + ", ".join(f"{name} ({in_words(seeds)})" for name, seeds in by_row.items())
            for sources, by_row in found.items()
        )
        yield f"Of programs with other sources, which may give other results: {of_each}."
