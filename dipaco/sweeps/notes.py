"""What a reader of a sweep's table should know: sentences below it."""

import dataclasses
from collections.abc import Mapping, Sequence

from dipaco.config import RunConfig
from dipaco.evaluation.tables import BEST_PATH
from dipaco.sweeps.pairing import LEAST_SEEDS
from dipaco.topology import SHARED

ROW_SETTINGS = (
    "name",
    "seed",
    "topology",
    "phases",
    "baselines",
    "evaluation",
    "reroute",
    "report",
)


def is_diloco(config: RunConfig) -> bool:
    """Whether several paths share every part, and are averaged at outer steps."""
    return config.num_paths > 1 and shares_all(config) and not config.outer.synchronous


def is_one_model(config: RunConfig) -> bool:
    """Whether all paths have the same parameters. Where they stop early, each is released as it was
    at its own best.
    """
    return config.num_paths == 1 or (shares_all(config) and not config.inner.hold_out)


def shares_all(config: RunConfig) -> bool:
    """Whether no path has a part of its own."""
    owning = [level for level in config.topology.levels if level.parts]
    return all(level.experts == SHARED for level in owning)


def differing_groups(one: RunConfig, other: RunConfig) -> list[str]:
    """Groups of settings in which two rows differ, apart from what is shared."""
    return [
        field.name
        for field in dataclasses.fields(RunConfig)
        if field.name not in ROW_SETTINGS and getattr(one, field.name) != getattr(other, field.name)
    ]


def num_differing(one: RunConfig, other: RunConfig) -> int:
    """In how many settings two rows differ, apart from what is shared."""
    return sum(
        getattr(getattr(one, group), field.name) != getattr(getattr(other, group), field.name)
        for group in differing_groups(one, other)
        for field in dataclasses.fields(getattr(one, group))
    )


def table_notes(
    configs: Mapping[str, RunConfig],
    main: Mapping[str, str],
    diloco_of: Mapping[str, str],
    apart: Sequence[str],
    *,
    has_variants: bool,
    num_seeds: int,
) -> list[str]:
    """The notes.

    Args:
      configs: row of the sweep -> config.
      main: name in the table -> row of the sweep, without those routed otherwise.
      diloco_of: name -> the DiLoCo row that it is compared with.
      apart: names on other text than the first row.
      has_variants: whether there are rows of the same modules routed otherwise.
      num_seeds: of the row that has most.
    """
    alone = [
        name
        for name, row in main.items()
        if name == row
        and configs[row].num_paths > 1
        and not is_diloco(configs[row])
        and name not in diloco_of
    ]
    differing: dict[str, list[str]] = {}  # groups of settings -> rows
    for name, other in diloco_of.items():
        if settings := ", ".join(differing_groups(configs[name], configs[other])):
            differing.setdefault(settings, []).append(name)
    notes = [
        "perplexity is the mean over seeds; ± is half the 95 % interval of the difference, paired "
        "by seed (Student's t). A difference is resolved where its interval excludes zero; of many "
        "comparisons, one in twenty would be by chance.",
        "over texts: the 95 % interval of the same difference (mean over seeds) on validation "
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
    if has_variants:
        notes.append(
            f"NAME_{BEST_PATH} picks each document's path after the fact: a bound that no router "
            "can reach. It takes no part in the orderings, nor do rows of the same modules routed "
            "otherwise or as an ensemble."
        )
    if alone:
        notes.append(
            f"Without a DiLoCo row of as many paths and tokens in this table: {', '.join(alone)}."
        )
    if apart:
        notes.append(
            f"On other text than the first row, and not compared with it: {', '.join(apart)}."
        )
    return notes
