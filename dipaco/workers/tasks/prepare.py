"""`prepare`: sources to tokens on disk, and the row plan of a dense model, which trains on all of
them but those that are held out for early stopping.
"""

import contextlib
import fcntl
import functools
import json
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path

from dipaco.control.summaries import Prepared
from dipaco.control.tasks import Claim, Fact, StageDone
from dipaco.data.corpus import Corpus
from dipaco.data.examples import prompt_examples
from dipaco.data.prepare import PrepareProgress, prepare
from dipaco.data.shards import build_shard, hold_out
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.store.layout import remote_name
from dipaco.workers.errors import TextChanged
from dipaco.workers.row_plans import save_row_plan
from dipaco.workers.tasks.prepare_slices import (
    check_router_documents,
    data_config,
    is_to_be_joined,
    join,
)


def prepare_corpus(
    run: Run, claim: Claim, progress: Callable[[PrepareProgress], None]
) -> list[Fact]:
    """Prepares the corpus, alone or of what slices have made, and saves the row plan of all of its
    training documents that are not held out. Raises `TooFewRouterDocuments`, and what `prepare`
    does.
    """
    started = time.monotonic()
    with _locked(run.layout.corpus_lock):
        corpus, files = _prepare(run, progress)
    manifest = corpus.manifest
    check_router_documents(run, manifest.documents)  # another run may have prepared it
    if run.given("corpus") not in (None, manifest.digest):
        raise TextChanged(origin=run.given("origin"))
    config = run.config
    # What stops a path early must not be known to the base model either, with which it begins.
    documents, _ = hold_out(
        corpus,
        corpus.documents("train"),
        config.inner.hold_out,
        shortest=config.data.prefix_tokens + 1,
    )
    everything = build_shard(
        corpus, 0, documents, config.data.length, run.seed_for("rows", "everything")
    )
    tokenizer_file = corpus.tokenizer_file
    return [
        StageDone(
            stage="prepare",
            artifacts={
                "corpus": Receipt("corpus/manifest.json", manifest.digest, manifest.num_bytes),
                "tokenizer": Receipt(
                    "corpus/tokenizer.json",
                    manifest.tokenizer_digest,
                    tokenizer_file.stat().st_size,
                ),
                "corpus_files": files,
                "everything": save_row_plan(run, everything.plan),
            },
            summary=Prepared(
                documents=manifest.documents,
                tokens=manifest.tokens,
                num_bytes=manifest.num_bytes,
                domains={domain.name: domain.documents for domain in manifest.domains},
                left_out=manifest.left_out,
                examples=prompt_examples(corpus),
                notes=[*(run.given("notes") or ()), *manifest.notes],
            ).as_json(),
            seconds=time.monotonic() - started,
        ),
    ]


def _prepare(run: Run, progress: Callable[[PrepareProgress], None]) -> tuple[Corpus, Receipt]:
    """The corpus, and an object that lists its files; uploads them if the run is in a bucket."""
    layout, objects = run.layout, run.objects
    made_in = layout.corpus if objects.remote is None else layout.preparing
    if is_to_be_joined(run):
        corpus = join(run, made_in, progress)
    else:
        check = functools.partial(check_router_documents, run)
        corpus = prepare(data_config(run), made_in, progress, check)
    receipts = [file._replace(name=f"{layout.corpus.name}/{file.name}") for file in corpus.files()]
    if objects.remote is not None:
        for receipt in receipts:
            file = made_in / Path(receipt.name).name
            objects.remote.put(remote_name(receipt), file, receipt.digest)
        shutil.rmtree(layout.corpus, ignore_errors=True)
        layout.preparing.rename(layout.corpus)
        corpus = Corpus.open(layout.corpus)
    return corpus, objects.write_bytes("corpora", "json", json.dumps(receipts).encode())


def restore_corpus(run: Run, progress: Callable[[PrepareProgress], None]) -> None:
    """Prepares the corpus again if its folder was deleted, which is how to repair a damaged one.
    The files of a corpus in a bucket are downloaded instead.

    Raises:
      CorpusChanged: the sources no longer give what the run has trained on.
    """
    is_prepared = "prepare" in {stage.stage for stage in run.ledger.facts.stages()}
    manifest = run.layout.corpus / "manifest.json"
    if run.address.url is None and is_prepared and not manifest.exists():
        with _locked(run.layout.corpus_lock):
            if not manifest.exists():
                prepare(data_config(run), run.layout.corpus, progress)
        _ = run.corpus  # opening it compares its digest with the recorded one


@contextlib.contextmanager
def _locked(lock: Path) -> Generator[None]:
    """Holds a file lock: two processes must not write one corpus, even if one of them has lost its
    claim and does not know yet.
    """
    with lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
