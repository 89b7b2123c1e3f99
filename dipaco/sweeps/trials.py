"""The runs of a sweep: every row under every seed."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
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


class SweepRun(NamedTuple):
    """The run of a trial."""

    title: str
    folder: Path
    config: RunConfig


def trials_of(
    sweep: str, rows: Mapping[str, RunConfig], seeds: Sequence[int], only: Sequence[str] = ()
) -> list[Trial]:
    """The runs of a sweep, seed by seed, so that every row has a first result early. `only` are
    names of rows, none = all.
    """
    return [
        Trial(name, seed, dataclasses.replace(config, name=f"{sweep} {name}", seed=seed))
        for seed in seeds
        for name, config in rows.items()
        if not only or name in only
    ]


def named(sweep: str, rows: Collection[str], given: Sequence[str]) -> list[str]:
    """The rows of a sweep that some names are of, in which `*` stands for any letters: all rows of
    ten phases are `* phases 10`.

    Raises:
      NoSuchRow: the sweep has no row of a name.
    """
    found = []
    for name in given:
        pattern = re.compile(".*".join(map(re.escape, name.split("*"))))
        its = [name] if name in rows else [row for row in rows if pattern.fullmatch(row)]
        if not its:
            raise NoSuchRow(sweep=sweep, name=name, known=", ".join(rows))
        found += [row for row in its if row not in found]
    return found


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
