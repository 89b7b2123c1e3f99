"""What contributions in fewer bits cost in quality: float32, int8, int4 and int2.

    dipaco ablate configs/ablations/fewer_bits.py --run runs/fewer_bits --seeds 0 --jobs 2 --only \\
        "float32 phases 40" "int8 phases 40" "int4 phases 40" "int2 phases 40"
    python tools/codec_curve.py runs/fewer_bits --ending "phases 40"

Four paths, 2x2 with everything shared, averaged plainly (outer rate 1, no momentum), rows of the
vocabulary by holders; size, text, base model and router of `reproduction.py`, phases of 50 steps. A
row is called after its codec and its phases: 5, 10, 20 or 40, `--only` picks. Every fifth phase is
evaluated, so a row of 40 is a curve; the second command sets each codec's against float32.

    dipaco ablate configs/ablations/fewer_bits.py --run runs/fewer_bits --only "* tiny"
    python tools/codec_curve.py runs/fewer_bits --ending tiny

The same in tiny: 20 phases of 20 steps, paths of two layers and a vocabulary of 1,024.

Cost on two cores that have nothing else to do: a base model 1 minute; a row of ten phases 4
minutes, of forty 16. The first command 80 minutes; a tiny row one.
"""

import dataclasses

from reproduction import PLAIN, inner, of, shared_grid

from dipaco.config import BaseSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.model.config import ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.topology import Level, Topology, blocks

BY_HOLDERS = dataclasses.replace(PLAIN, vocabulary_rows="holders")
CODECS = {
    "float32": BY_HOLDERS,
    "int8": dataclasses.replace(BY_HOLDERS, codec="int8"),
    "int4": dataclasses.replace(BY_HOLDERS, codec="int4"),
    "int2": dataclasses.replace(BY_HOLDERS, codec="int2"),
}
PHASES = (5, 10, 20, 40)
TINY = Topology(
    levels=(
        Level(name="early", parts=("embed", *blocks(0, 0)), experts=2),
        Level(name="late", parts=(*blocks(1, 1), "final_norm", "head"), experts=2),
    )
)


def sweep() -> dict[str, RunConfig]:
    rows = {
        f"{name} phases {phases}": of(shared_grid(2), phases=phases, inner=inner(6e-3), outer=outer)
        for phases in PHASES
        for name, outer in CODECS.items()
    }
    return rows | {f"{name} tiny": tiny(outer) for name, outer in CODECS.items()}


def tiny(outer: OuterSettings) -> RunConfig:
    """A row of a minute."""
    return of(
        TINY,
        model=ModelConfig(
            vocab_size=1024, d_model=64, num_layers=2, num_heads=4, d_ff=192, max_length=64
        ),
        data=DataConfig(length=64, max_document_bytes=1024),
        base=BaseSettings(steps=150, steps_per_phase=50),
        phases=20,
        inner=dataclasses.replace(inner(6e-3), steps=20, batch_size=8, warmup_steps=20),
        outer=outer,
    )
