"""The runs of a sweep: every row under every seed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dipaco.config import RunConfig
from dipaco.sweeps.errors import BadSeeds, NoSuchRow


class Trial(NamedTuple):
    """A row of a sweep under one seed: one run."""

    row: str
    seed: int
    config: RunConfig

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"


def trials_of(
    sweep: str, rows: Mapping[str, RunConfig], seeds: Sequence[int], only: Sequence[str] = ()
) -> list[Trial]:
    """The runs of a sweep, seed by seed, so that every row has a first result early.

    Raises:
      NoSuchRow: `only` names a row that the sweep does not have.
    """
    for name in only:
        if name not in rows:
            raise NoSuchRow(sweep=sweep, name=name, known=", ".join(rows))
    return [
        Trial(name, seed, dataclasses.replace(config, name=f"{sweep} {name}", seed=seed))
        for seed in seeds
        for name, config in rows.items()
        if not only or name in only
    ]


def seeds_of(text: str) -> list[int]:
    """`0,1,2` -> [0, 1, 2]. Raises `BadSeeds`."""
    seeds: list[int] = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) >= 2**63:
            raise BadSeeds(given=text, problem=f"`{word.strip()}` is no seed")
        if int(word) in seeds:
            raise BadSeeds(
                given=text, problem=f"{int(word)} is there twice, and would count as two"
            )
        seeds.append(int(word))
    return seeds
