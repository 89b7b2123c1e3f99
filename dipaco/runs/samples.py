"""Texts of releases as JSON values: for `status` and `inspect`."""

from collections.abc import Iterable
from typing import Any

from dipaco.control.tasks import Sampled


def samples_as_json(sampled: Iterable[Sampled]) -> list[dict[str, Any]]:
    """One object for each prompt of each release; `arm` and `phase` say of which."""
    return [
        {"arm": each.arm, "phase": each.phase, **sample._asdict()}
        for each in sampled
        for sample in each.samples
    ]
