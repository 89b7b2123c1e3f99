"""Early stopping of each path on a hold-out of its own shard, where shards are small enough to be
over-fitted: a tenth of the quickstart's text and twice its phases (DiPaCo section 2.7).

    dipaco ablate configs/ablations/early_stopping.py --run runs/early --seeds 0,1,2 --jobs 2

Nothing trains on the twentieth of the texts that is held out, which costs a little. The
paper: flat mixtures with many paths over-fit (256 experts: 14.2, 16 experts: 13.9), and early
stopping repairs that; 16x16 goes from 12.39 to 12.22.

Cost on two cores: text 10 s; base models 32 s, two a seed, since that of the stopped rows does not
read what they hold out; each of the five rows 3.5 minutes. With three seeds 57 minutes of work one
after another.
"""

import dataclasses

import published

from dipaco.config import RunConfig


def sweep() -> dict[str, RunConfig]:
    flat = with_little_text(published.flat())
    grid = with_little_text(published.grid())
    return {
        "diloco": with_little_text(published.diloco()),
        "flat": flat,
        "flat stopped": stopping(flat),
        "2x2": grid,
        "2x2 stopped": stopping(grid),
    }


def with_little_text(config: RunConfig) -> RunConfig:
    data = dataclasses.replace(config.data, max_bytes_per_domain=150_000, router_fraction=0.15)
    return dataclasses.replace(config, data=data, phases=10)


def stopping(config: RunConfig) -> RunConfig:
    """The same with a twentieth of each shard held out, to stop by."""
    return dataclasses.replace(config, inner=dataclasses.replace(config.inner, hold_out=0.05))
