"""Overlapping shards: every document trains its best path, or its two best (DiPaCo section 2.4.4),
with little text (a tenth of the quickstart's, twice its phases) and with all of it.

    dipaco ablate configs/ablations/overlap.py --run runs/overlap --seeds 0,1,2 --jobs 2

At evaluation a document has one path either way. With overlap a path sees twice the documents in as
many steps: less of its own, less often the same. The paper has n = 2 in 16x16, against
over-fitting.

Cost on two cores: text half a minute, once each; a base model 32 s, twice a seed; rows with little
text 3.5 minutes, others 1.8. With three seeds 80 minutes of work one after another.
"""

import dataclasses

import early_stopping
import published

from dipaco.config import RunConfig


def sweep() -> dict[str, RunConfig]:
    grid = published.grid()
    rows = {}
    for name, config in (("2x2", grid), ("flat", published.flat())):
        rows[name] = config
        rows[f"{name} overlap 2"] = overlapping(config)
    rows["diloco"] = published.diloco()
    little = {
        f"{name} little text": early_stopping.with_little_text(config)
        for name, config in rows.items()
    }
    return rows | little


def overlapping(config: RunConfig) -> RunConfig:
    """The same with two paths a document."""
    return dataclasses.replace(config, routing=dataclasses.replace(config.routing, overlap=2))
