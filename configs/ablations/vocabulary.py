"""Rows of the vocabulary: averaged by documents (the paper's) or by those who hold the token, or
each path's own; and whether rows of tokens that a path's shard does not have are frozen.

    dipaco ablate configs/ablations/vocabulary.py --run runs/vocabulary --seeds 0,1,2 --only \\
        "2x2 documents rate 0.006 phases 10" "2x2 holders rate 0.006 phases 10" …

Rows are called `GRID ARM rate RATE phases N`, and there are more of them than anyone wants to run
at once: `--only` picks. GRID is 2x2, 4x4, diloco or diloco 16 (four and sixteen paths that share
all, without the root of the fan-in). ARM is one of

  documents, holders          `outer.vocabulary_rows`, all tokens in training
  private                     2x2 and 4x4 with each path's own embedding, last norm and head
  frozen                      `inner.freeze_absent_tokens`, rows averaged by documents
  holders frozen              the same with rows averaged by holders

All rows have the shape, text and base model of `reproduction.py`, and average plainly (outer rate
1, no momentum). Cost on two cores that have nothing else to do: at ten phases a row of four paths 4
minutes, of sixteen 10; at twenty and forty two and four times that.
"""

import dataclasses

from reproduction import PLAIN, inner, of, private_grid, shared_grid, whole

from dipaco.config import RunConfig
from dipaco.topology import SHARED, Topology

DILOCO = {"diloco": whole(2, SHARED), "diloco 16": whole(4, SHARED)}
GRIDS = {"2x2": shared_grid(2), "4x4": shared_grid(4), **DILOCO}


def sweep() -> dict[str, RunConfig]:
    return {
        f"{name} rate {rate:g} phases {phases}": config
        for phases in (10, 20, 40)
        for rate in (3e-3, 6e-3, 12e-3, 24e-3)
        for name, config in arms(rate, phases).items()
    }


def arms(rate: float, phases: int) -> dict[str, RunConfig]:
    """All arms at one rate, for so many phases."""

    def arm(topology: Topology, rows: str = "documents", frozen: bool = False) -> RunConfig:
        return of(
            topology,
            phases=phases,
            inner=dataclasses.replace(inner(rate), freeze_absent_tokens=frozen),
            outer=dataclasses.replace(
                PLAIN,
                vocabulary_rows=rows,
                rescale_by_fan_in=topology not in DILOCO.values(),
            ),
        )

    rows = {
        f"{grid} {name}": arm(topology, kind, frozen)
        for grid, topology in GRIDS.items()
        for name, kind, frozen in (
            ("documents", "documents", False),
            ("holders", "holders", False),
            ("frozen", "documents", True),
            ("holders frozen", "holders", True),
        )
    }
    return rows | {f"{k}x{k} private": arm(private_grid(k)) for k in (2, 4)}
