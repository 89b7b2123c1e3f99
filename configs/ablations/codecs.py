"""What contributions in fewer bits cost in quality: float32, int8, int4, and sparse2 with 128 and
64 of 4,096 values.

    dipaco ablate configs/ablations/codecs.py --run runs/codecs --seeds 0 --jobs 2 --only \\
        "float32 phases 40" "int8 phases 40" "int4 phases 40" "sparse2 128 phases 40" \\
        "sparse2 64 phases 40"
    python tools/codec_curve.py runs/codecs --ending "phases 40"

Four paths, 2x2 with everything shared, averaged plainly (outer rate 1, no momentum), rows of the
vocabulary by holders; size, text, base model and router of `reproduction.py`, phases of 50 steps. A
row is called after its codec and its phases: 5, 10, 20 or 40, `--only` picks. Every fifth phase is
evaluated, so a row of 40 is a curve; the second command sets each codec's against float32. In a
short run error feedback delivers only a part of the way, which is why a row of ten is no judgement
on `sparse2`. Other dials: `--set outer.residual_decay=0.98`, `--set inner.learning_rate=0.012`.

Cost on two cores that have nothing else to do: a base model 1 minute; a row of ten phases 4
minutes, of forty 16. The first command 80 minutes.
"""

import dataclasses

from reproduction import PLAIN, inner, of, shared_grid

from dipaco.config import RunConfig

BY_HOLDERS = dataclasses.replace(PLAIN, vocabulary_rows="holders")
CODECS = {
    "float32": BY_HOLDERS,
    "int8": dataclasses.replace(BY_HOLDERS, codec="int8"),
    "int4": dataclasses.replace(BY_HOLDERS, codec="int4"),
    "sparse2 128": dataclasses.replace(BY_HOLDERS, codec="sparse2", sparse_places=128),
    "sparse2 64": dataclasses.replace(BY_HOLDERS, codec="sparse2", sparse_places=64),
}
PHASES = (5, 10, 20, 40)


def sweep() -> dict[str, RunConfig]:
    return {
        f"{name} phases {phases}": of(
            shared_grid(2),
            phases=phases,
            inner=inner(6e-3),
            outer=outer,
        )
        for phases in PHASES
        for name, outer in CODECS.items()
    }
