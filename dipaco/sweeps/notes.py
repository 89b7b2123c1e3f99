"""The notes below a sweep's table, in sentences."""

import math
from collections.abc import Iterable, Mapping, Sequence

from dipaco.evaluation.tables import BEST_PATH
from dipaco.runs.version import digest_in
from dipaco.sweeps.kinds import differing_groups, is_diloco
from dipaco.sweeps.measured import NamedRow, are_apart, seeds_unlike
from dipaco.sweeps.pairing import LEAST_SEEDS, in_words


def table_notes(rows: Mapping[str, NamedRow], diloco_of: Mapping[str, str]) -> list[str]:
    """The notes.

    Args:
      rows: name in the table -> row. Others are compared with the first.
      diloco_of: name -> the DiLoCo row that it is compared with.
    """
    main = {name: row for name, row in rows.items() if row.is_main}
    num_seeds = max((len(row.by_seed) for row in rows.values()), default=0)
    alone = [
        name
        for name, row in main.items()
        if name == row.row
        and row.config.num_paths > 1
        and not is_diloco(row.config)
        and name not in diloco_of
    ]
    differing: dict[str, list[str]] = {}  # groups of settings -> rows
    for name, other in diloco_of.items():
        if settings := ", ".join(differing_groups(rows[name].config, rows[other].config)):
            differing.setdefault(settings, []).append(name)
    notes = [
        "tune: perplexity of the documents to choose a row by, as the best of several rates. "
        "perplexity is that of test documents, which no choice has seen.",
        "perplexity is the mean over seeds; ± is half the 95 % interval of the difference, paired "
        "by seed (Student's t). A difference is resolved where its interval excludes zero; of many "
        "comparisons, one in twenty would be by chance.",
        "over texts: the 95 % interval of the same difference (mean over seeds) on test "
        "texts drawn with replacement, the same for both rows, each with all of its documents, "
        "which are pieces of it. It says what other text would "
        "give of the same trained models, ± what other seeds would give on the same text; neither "
        "holds the noise of the other.",
        "wrong path: the perplexity of each document under the paths that it was not routed to, "
        "the mean of their log-likelihoods.",
        "to DiLoCo: against the DiLoCo row of as many paths and tokens on the same text, which "
        "shares everything. That difference is what modules bring, where nothing else differs.",
        "held equal: what the row has in common with the first; a difference in anything else "
        "may be what made it better or worse.",
    ]
    if num_seeds < LEAST_SEEDS:
        notes.append(
            f"Intervals over seeds need {LEAST_SEEDS} seeds (`--seeds 0,1,2`), and here are "
            f"{num_seeds}: no difference is resolved."
        )
    notes += [
        f"That DiLoCo row has other settings also under {settings}: {', '.join(names)}."
        for settings, names in differing.items()
    ]
    if len(main) < len(rows):
        notes.append(
            f"NAME_{BEST_PATH} picks each document's path after the fact: a bound that no router "
            "can reach. It takes no part in the orderings, nor do rows of the same modules routed "
            "otherwise or as an ensemble."
        )
    if alone:
        notes.append(
            f"Without a DiLoCo row of as many paths and tokens in this table: {', '.join(alone)}."
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
    """Rows and seeds that are not compared with the first row."""
    if not rows:
        return
    first = rows[0]
    apart = [row for row in rows if are_apart(first, row)]
    fewer = [row for row in apart if _are_of_one_text(first, row)]
    if other := ", ".join(row.name for row in apart if row not in fewer):
        yield f"On other text than the first row, and not compared with it: {other}."
    if fewer:
        yield (
            "Scored on other documents than the first row (`evaluation.max_documents`), and not "
            f"compared with it: {', '.join(row.name for row in fewer)}."
        )
    unlike = {row.name: seeds_unlike(first, row) for row in rows if row not in apart}
    if some := "; ".join(f"{name} ({in_words(seeds)})" for name, seeds in unlike.items() if seeds):
        yield (
            "On other text than the first row under some seeds, as where it was read again, and "
            f"compared with it under the others only: {some}."
        )
    if len({tuple(sorted(row.by_seed)) for row in rows}) > 1:
        yield (
            "Not all rows have the same seeds, so their means are not of the same: differences "
            "are over the seeds that both rows have, and the picture ranks the rows by those."
        )


def _are_of_one_text(one: NamedRow, other: NamedRow) -> bool:
    """True if two rows have the same text under a common seed, or under any seeds if they have none
    in common.
    """
    ones, others = ({seed: it.on.text for seed, it in row.by_seed.items()} for row in (one, other))
    if seeds := ones.keys() & others.keys():
        return any(ones[seed] == others[seed] for seed in seeds)
    return not set(ones.values()).isdisjoint(others.values())


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
