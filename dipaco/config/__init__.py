"""All settings of a run, the checks between them, and its plan.

    run_config.py   RunConfig: the settings of all rooms, the checks between them, and the plan
    sections.py     settings of the base model, of evaluation, of the report

A config is a Python file with a function `run() -> RunConfig`. A variant is a small edit of another
(`dataclasses.replace`). No JAX here, so that `dipaco config show` and a wrong `--set` answer
immediately.
"""

from dipaco.config.run_config import (
    BASELINES,
    DATA_PARALLEL,
    DENSE,
    DENSE_EQUAL_TOKENS,
    MODULAR,
    OF_NO_RESULT,
    Baseline,
    RunConfig,
    check_effects,
    check_mesh,
)
from dipaco.config.sections import BaseSettings, EvaluationSettings, ReportSettings

__all__ = [
    "BASELINES",
    "DATA_PARALLEL",
    "DENSE",
    "DENSE_EQUAL_TOKENS",
    "MODULAR",
    "OF_NO_RESULT",
    "BaseSettings",
    "Baseline",
    "EvaluationSettings",
    "ReportSettings",
    "RunConfig",
    "check_effects",
    "check_mesh",
]
