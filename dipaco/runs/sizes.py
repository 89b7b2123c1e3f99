"""How much a run takes on its disk or in its bucket, by kind."""

from dipaco.control.tasks import SLICED
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.store.inventory import by_kind, stored_here, stored_there
from dipaco.store.layout import remote_name


def stored_of(run: Run) -> dict[str, int]:
    """Name -> bytes, of everything that lies in the run's folder, or in its bucket."""
    if run.objects.remote is None:
        return stored_here(run.layout.root)
    return stored_there(run.objects.remote, _known_bytes(run))


def sizes_of(run: Run) -> dict[str, int]:
    """Kind -> bytes; of a run in a bucket without the copies of shards' tokens."""
    return by_kind(stored_of(run))


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
