"""Bytes that a run takes on its disk or in its bucket, and bytes that contributions left out."""

import numpy as np

from dipaco.control.planning.tasks import SLICED
from dipaco.outer.compress import codec_of
from dipaco.outer.vocabulary import sent_rows
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm
from dipaco.store.inventory import by_kind, stored_here, stored_there
from dipaco.store.layout import remote_name
from dipaco.topology import ModuleId


def stored_of(run: Run) -> dict[str, int]:
    """Name -> bytes, of everything that lies in the run's folder, or in its bucket."""
    if run.objects.remote is None:
        return stored_here(run.layout.root)
    return stored_there(run.objects.remote, _known_bytes(run))


def sizes_of(run: Run) -> dict[str, int]:
    """Kind -> bytes. A run in a bucket is counted without the copies of shards' tokens."""
    return by_kind(stored_of(run))


def bytes_left_out(run: Run, arm: Arm) -> int:
    """Bytes of the rows that the contributions of a finished arm do not hold, by the bits that the
    codec takes for a value. 0 where rows are averaged by documents.
    """
    leaf_bits = codec_of(run.config.outer).leaf_bits
    known: dict[tuple[ModuleId, int, tuple[int, ...]], int] = {}  # rows, of all paths of a phase

    def rows_left_out(module: ModuleId, phase: int) -> int:
        through = tuple(arm.contributors(module, phase))
        key = module, arm.routed_at(phase), through
        if key not in known:
            counts = run.counts_through(arm.name, module, phase) if through else None
            known[key] = (
                0
                if counts is None
                else sum(
                    int(np.count_nonzero(~sent_rows(counts, place)))
                    for place in range(len(through))
                )
            )
        return known[key]

    if not (arm.has_outer_steps and run.config.outer.vocabulary_rows == "holders"):
        return 0
    d_model = run.config.model.d_model
    bits = 0
    for module in arm.topology.modules:
        rows = sum(rows_left_out(module, phase) for phase in range(arm.phases))
        owned = set(arm.topology.parts_of(module))
        if rows and "embed" in owned:
            bits += leaf_bits((rows, d_model))
        if rows and "head" in owned:
            bits += leaf_bits((d_model, rows))
    return round(bits / 8)


def _known_bytes(run: Run) -> dict[str, int]:
    """Name in the bucket -> bytes, as recorded."""
    stages = run.ledger.facts.stages()
    receipts = [receipt for stage in stages for receipt in stage.artifacts.values()]
    for sliced in SLICED:
        for fact in run.ledger.facts.slices(sliced):
            receipts += fact.artifacts.values()
    for stage in stages:
        if stage.stage == "prepare":
            receipts += run.corpus_files.values()
        if stage.stage == "route":
            receipts += run.shards_of(stage).plans
    known = {remote_name(Receipt(*receipt)): receipt.num_bytes for receipt in receipts}
    return known | run.ledger.retention.object_bytes()
