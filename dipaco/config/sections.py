"""Settings that belong to no other room: of the base model, of evaluation, of the report."""

import dataclasses
import math

from dipaco.errors import BadSetting
from dipaco.settings import Count, Natural, check_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """The dense model that all modules start from, and that the router's features come from."""

    steps: Natural = 24_000
    """Optimiser steps (DiPaCo section 4); 0 = modules start from scratch, and the features are
    those of a random model."""
    steps_per_phase: Count = 1000
    """Optimiser steps between two saves of it."""

    def __post_init__(self):
        check_values(self, "base")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Settings of the evaluation of releases."""

    every_phases: Count = 1
    """Phases between two evaluations; the last phase is always evaluated."""
    max_documents: Count | None = None
    """Documents of `tune` that are scored, and as many of `test`, the same for every seed; None =
    all."""
    batch_size: Count = 64
    """Documents scored at once; changes results by rounding only."""
    best_path: bool = True
    """True if the last release is scored under every path: for the row of the best path of each
    document, and for the perplexity of a document under the other paths."""
    ensembles: bool = True
    """True if the report also has rows that mix the predictions of several paths; they need
    `evaluation.best_path`."""

    def __post_init__(self):
        check_values(self, "evaluation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Prices and speeds that the report assumes. Training does not depend on them."""

    link_megabits: tuple[float, ...] = (20.0,)
    """Megabits a second of every machine's link, up and down together; 20 is a home's. One rate or
    several: each is a column of the report."""

    def __post_init__(self):
        links = self.link_megabits
        if not (links and all(0 < link < math.inf for link in links)):
            raise BadSetting(
                name="report.link_megabits",
                value=links,
                expected="one rate or several, each above 0 and finite, as in 20,100",
            )
