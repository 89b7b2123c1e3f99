"""`prepare`: sources to tokens on disk, slice by slice, and the row plan of a dense model.

`data.slices` says how many slices there are. Any worker does any of the tasks:

  read       each slice of the sources: its text, and a table of its documents
  merge      once: which documents of all slices stay, and the tokenizer
  tokenise   each slice: the tokens of its documents that stay
  (no step)  once: the corpus, which is the same for any number of slices

The text of a slice is deleted when its tokens are recorded, and what else the slices made when the
corpus is. A corpus that must be made again is made by one task.
"""

import functools
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.control.planning.summaries import Prepared
from dipaco.control.planning.tasks import Claim, Fact, SliceDone, StageDone
from dipaco.data.config import CorpusConfig, EdgeNames, data_from
from dipaco.data.corpus import Corpus
from dipaco.data.corpus_writing import write_corpus
from dipaco.data.encode import SliceTokens, TextPlaces, tokenise_slice
from dipaco.data.examples import prompt_examples
from dipaco.data.left_out import count_splits
from dipaco.data.merging import Documents, merge
from dipaco.data.prepare import finished_corpus, prepare, staging_folder, tokenizer_for
from dipaco.data.reading import OnProgress, SliceTable, read_slice, table_of_arrays
from dipaco.data.shards import build_shard, hold_out
from dipaco.data.slices import Listing, cut_into_slices
from dipaco.data.tokenizer import load_tokenizer
from dipaco.errors import BadSource
from dipaco.files import digest_of, write_arrays
from dipaco.receipt import Receipt
from dipaco.routing.errors import TooFewRouterDocuments
from dipaco.runs.opening import ENDS_WITH_BASE
from dipaco.runs.run import Run
from dipaco.store.fetch_lock import held_lock
from dipaco.store.layout import remote_name
from dipaco.workers.errors import OtherSources, SlicesDiffer, SourcesMissing, TextChanged
from dipaco.workers.row_plans import save_row_plan

KIND = "corpora"


def prepare_step(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Does one of the tasks that share the preparation."""
    steps = {"read": _read, "merge": _merge, "tokenise": _tokenise, "": _corpus}
    return steps[claim.task.step](run, claim, progress)


def _read(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Reads one slice of the sources.

    Raises:
      OtherSources, SourcesMissing: this machine sees other files than one that has read a slice,
        or none.
    """
    started, number = time.monotonic(), claim.task.slice
    config, others = data_config(run), run.ledger.facts.slices("prepare", "read")
    try:
        slices, listing = cut_into_slices(config, run.plan.slices)
    except BadSource as error:
        if others:
            raise SourcesMissing(problem=error) from error
        raise
    for other in others[:1]:
        there = Listing(*other.summary["listing"])
        if there != listing:
            raise OtherSources(
                files=listing.files,
                num_bytes=listing.num_bytes,
                other_files=there.files,
                other_bytes=there.num_bytes,
            )
    tables: list[SliceTable] = []
    texts = run.objects.write(
        KIND, "txt", lambda file: tables.append(read_slice(config, slices[number], file, progress))
    )
    (table,) = tables
    artifacts = {"texts": texts, "table": _save(run, table.arrays())}
    summary = {"listing": listing, "documents": table.num_pieces, "bytes": texts.num_bytes}
    return [_done(claim, artifacts, summary, started)]


def _merge(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Decides which documents stay, and trains the tokenizer.

    Raises:
      SlicesDiffer, EmptyCorpus, EmptySplit, TooFewRouterDocuments, BadTokenizer.
    """
    started, config = time.monotonic(), data_config(run)
    slices = run.ledger.facts.slices("prepare", "read")
    for each in slices:
        if each.summary["listing"] != slices[0].summary["listing"]:
            raise SlicesDiffer(slice=each.slice)
    documents = _documents(run, config)
    check_router_documents(
        run, count_splits(config, documents, documents.splits[documents.is_kept])
    )

    def sample(num_bytes: int) -> Iterator[str]:
        chosen = documents.in_sample(num_bytes)
        for number, each in enumerate(slices):
            texts = documents.texts(number, chosen)
            if len(texts.starts):
                with run.objects.open(each.artifacts["texts"]) as stream:
                    yield from texts.read(stream)

    tokenizer = run.objects.write(
        "tokenizers", "json", lambda file: tokenizer_for(config, sample, file, progress)
    )
    kept: dict[str, np.ndarray] = {}
    for number in range(len(slices)):
        texts = documents.texts(number, documents.is_kept)
        kept |= {f"starts_{number:06d}": texts.starts, f"sizes_{number:06d}": texts.sizes}
    summary = {"documents": len(documents.is_kept)}
    return [_done(claim, {"tokenizer": tokenizer, "kept": _save(run, kept)}, summary, started)]


def _tokenise(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Makes the documents of one slice tokens. A killed task goes on with what it has saved."""
    started, number = time.monotonic(), claim.task.slice
    (merged,) = run.ledger.facts.slices("prepare", "merge")
    read = run.ledger.facts.slices("prepare", "read")[number]
    names = f"starts_{number:06d}", f"sizes_{number:06d}"
    kept, receipt = merged.artifacts["kept"], merged.artifacts["tokenizer"]
    texts = TextPlaces(*_load(run, kept, *names).values())
    tokenizer = load_tokenizer(run.objects.file(receipt))
    text = read.artifacts["texts"]
    folder = run.layout.slices / digest_of(text.digest, kept.digest, receipt.digest)
    with held_lock(folder.with_name(f"{folder.name}.lock")):
        file = run.objects.file(text)
        made = tokenise_slice(data_config(run), file, texts, tokenizer, folder, progress)
        tokens = run.objects.write(KIND, "tokens", made.file.rename)
        shutil.rmtree(folder)
    artifacts = {"tokens": tokens, "lengths": _save(run, {"lengths": made.lengths})}
    summary = {"documents": len(made.lengths), "tokens": int(made.lengths.sum(dtype=np.int64))}
    return [_done(claim, artifacts, summary, started)]


def _corpus(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Puts the corpus together, and saves the row plan of all of its training documents that are
    not held out. Raises `TooFewRouterDocuments`, and what `prepare` does.
    """
    started = time.monotonic()
    with held_lock(run.layout.corpus_lock):
        corpus, files = _stored_corpus(run, progress)
    manifest = corpus.manifest
    check_router_documents(run, manifest.documents)  # another run may have prepared it
    if run.given("corpus") not in (None, manifest.digest):
        raise TextChanged(origin=run.given("origin"))
    config = run.config
    # The base model, with which a path begins, must not know the documents that stop it early.
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
    seconds_of_slices = sum(fact.seconds for fact in run.ledger.facts.slices("prepare"))
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
            seconds=time.monotonic() - started + seconds_of_slices,
        ),
    ]


def _stored_corpus(run: Run, progress: OnProgress) -> tuple[Corpus, Receipt]:
    """The corpus, and an object that lists its files. Uploads them if the run is in a bucket."""
    layout, objects = run.layout, run.objects
    made_in = layout.corpus if objects.remote is None else layout.preparing
    has_slices = run.ledger.facts.num_slices("prepare", "tokenise") == run.plan.slices
    if has_slices and not _is_prepared(run):
        corpus = _joined(run, made_in, progress)
    else:
        corpus = prepare(data_config(run), made_in, progress)
    receipts = [file._replace(name=f"{layout.corpus.name}/{file.name}") for file in corpus.files()]
    if objects.remote is not None:
        for receipt in receipts:
            objects.remote.put(remote_name(receipt), made_in / Path(receipt.name).name)
        shutil.rmtree(layout.corpus, ignore_errors=True)
        layout.preparing.rename(layout.corpus)
        corpus = Corpus.open(layout.corpus)
    return corpus, objects.write_bytes(KIND, "json", json.dumps(receipts).encode())


def _joined(run: Run, folder: Path, progress: OnProgress) -> Corpus:
    """The corpus in `folder`, of the tokens that the slices made."""
    config = data_config(run)
    if (finished := finished_corpus(config, folder)) is not None:
        return finished
    objects, facts = run.objects, run.ledger.facts
    (merged,) = facts.slices("prepare", "merge")
    slices = [
        SliceTokens(
            _load(run, each.artifacts["lengths"])["lengths"],
            objects.file(each.artifacts["tokens"]),
        )
        for each in facts.slices("prepare", "tokenise")
    ]
    return write_corpus(
        config,
        folder,
        staging_folder(config, folder),
        _documents(run, config),
        load_tokenizer(objects.file(merged.artifacts["tokenizer"])),
        slices,
        progress,
        functools.partial(check_router_documents, run),
    )


def _documents(run: Run, config: CorpusConfig) -> Documents:
    """The documents of all slices."""
    read = run.ledger.facts.slices("prepare", "read")
    tables = [table_of_arrays(_load(run, each.artifacts["table"])) for each in read]
    return merge(config, tables)


def check_router_documents(run: Run, documents: dict[str, int]) -> None:
    """Raises `TooFewRouterDocuments` for a router that cannot be fitted to so many, before a base
    model is trained. A run of which others take the base model fits none.
    """
    fits_a_router = run.given("router") is None and not run.given(ENDS_WITH_BASE)
    if fits_a_router and documents["router"] < run.config.num_paths:
        raise TooFewRouterDocuments(documents=documents["router"], paths=run.config.num_paths)


def data_config(run: Run) -> CorpusConfig:
    """The config's data settings, with the tokenizer that the run was given and its edge tokens."""
    data = run.config.corpus
    if (given := run.given("tokenizer")) is None:
        return data
    names = EdgeNames(*run.given("edge_names"))
    return data_from(data, run.objects.file(Receipt(*given)), names)


def restore_corpus(run: Run, progress: OnProgress) -> None:
    """Prepares the corpus again if its folder was deleted, which is how to repair a damaged one.
    The files of a corpus in a bucket are downloaded instead.

    Raises:
      CorpusChanged: the sources no longer give what the run has trained on.
    """
    manifest = run.layout.corpus / "manifest.json"
    if run.address.url is None and _is_prepared(run) and not manifest.exists():
        with held_lock(run.layout.corpus_lock):
            if not manifest.exists():
                prepare(data_config(run), run.layout.corpus, progress)
        _ = run.corpus  # opening it compares its digest with the recorded one


def superseded_text(run: Run, number: int) -> list[str]:
    """The name of a slice's text, once it is tokens. Empty while another slice reads that object:
    slices with equal text, as empty ones, have one.
    """
    facts = run.ledger.facts
    is_tokens = {fact.slice for fact in facts.slices("prepare", "tokenise")}
    texts = {fact.slice: fact.artifacts["texts"].name for fact in facts.slices("prepare", "read")}
    read_again = {name for each, name in texts.items() if each not in is_tokens}
    return [] if texts[number] in read_again else [texts[number]]


def superseded_texts(run: Run) -> list[str]:
    """Names of what slices made, once the corpus is recorded: all but the tokenizer, which may be
    one that the run was given.
    """
    if not _is_prepared(run):
        return []
    return [
        receipt.name
        for fact in run.ledger.facts.slices("prepare")
        for receipt in fact.artifacts.values()
        if receipt.name.startswith(f"objects/{KIND}/")
    ]


def delete_staged_text(run: Run) -> None:
    """Deletes the text that slices have read on this machine, once the corpus is recorded."""
    if _is_prepared(run):
        shutil.rmtree(run.layout.slices, ignore_errors=True)


def _is_prepared(run: Run) -> bool:
    return any(stage.stage == "prepare" for stage in run.ledger.facts.stages())


def _save(run: Run, arrays: dict[str, np.ndarray]) -> Receipt:
    return run.objects.write(KIND, "npz", lambda file: write_arrays(file, arrays))


def _load(run: Run, receipt: Receipt, *names: str) -> dict[str, Any]:
    """The arrays with these names, or all."""
    with np.load(run.objects.file(receipt), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in names or arrays.files}


def _done(
    claim: Claim, artifacts: dict[str, Receipt], summary: dict[str, Any], started: float
) -> SliceDone:
    return SliceDone(
        stage=claim.task.kind,
        step=claim.task.step,
        slice=claim.task.slice,
        artifacts=artifacts,
        summary=json.loads(json.dumps(summary)),
        seconds=time.monotonic() - started,
    )
