"""`prepare` by many tasks (`data.slices`): each reads a slice of the text, one decides what of all
of it stays and trains the tokenizer, each makes the rest of a slice tokens.

The task `prepare` itself then puts the tokens together, to the bytes that it makes alone. What the
slices made is deleted when it is recorded; a corpus that must be made again is made by one task.
"""

import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.control.tasks import Claim, Fact, SliceDone
from dipaco.data.config import DataConfig, EdgeNames, data_from, edge_names
from dipaco.data.corpus import Corpus
from dipaco.data.edge_tokens import edge_tokens
from dipaco.data.errors import EmptyCorpus
from dipaco.data.merging import Merged, SliceTable, merge, table_of_arrays
from dipaco.data.prepare import (
    PrepareProgress,
    count_splits,
    finished_corpus,
    staging_folder,
    tokenizer_for,
    write_corpus,
)
from dipaco.data.sliced import (
    SliceTokens,
    read_slice,
    texts_where,
    tokenise_slice,
    tokens_in_chunks,
)
from dipaco.data.slices import Listing, cut_into_slices
from dipaco.data.staging import Staged, open_staged, table_of
from dipaco.data.tokenizer import load_tokenizer
from dipaco.errors import BadSource
from dipaco.files import write_arrays, write_whole
from dipaco.receipt import Receipt
from dipaco.routing.errors import TooFewRouterDocuments
from dipaco.runs.opening import ENDS_WITH_BASE
from dipaco.runs.run import Run
from dipaco.workers.errors import OtherSources, SlicesDiffer, SourcesMissing

KIND = "corpora"
OnProgress = Callable[[PrepareProgress], None]


def read(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Reads one slice of the sources: its text, and columns about its documents.

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

    def write(file: Path) -> None:
        tables.append(
            read_slice(
                config,
                slices[number],
                file,
                say=lambda message: progress(PrepareProgress(stage="fetch", message=message)),
                count=lambda done: progress(PrepareProgress(stage="read", done=done, unit="bytes")),
            )
        )

    texts = run.objects.write(KIND, "txt", write)
    (table,) = tables
    artifacts = {"texts": texts, "table": _save(run, table.arrays())}
    pieces = len(table.columns["hashes"])
    summary = {"listing": listing, "documents": pieces, "bytes": texts.num_bytes}
    return [_done(claim, artifacts, summary, started)]


def merge_slices(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Decides which documents stay, and trains the tokenizer.

    Raises:
      SlicesDiffer, EmptyCorpus, EmptySplit, TooFewRouterDocuments, BadTokenizer.
    """
    started, config = time.monotonic(), data_config(run)
    slices = run.ledger.facts.slices("prepare", "read")
    for each in slices:
        if each.summary["listing"] != slices[0].summary["listing"]:
            raise SlicesDiffer(slice=each.slice)
    tables = [table_of_arrays(_load(run, each.artifacts["table"])) for each in slices]
    merged = merge(tables)
    if not len(merged.columns["hashes"]):
        raise EmptyCorpus(sources=", ".join(f"`{url}`" for url in config.sources))
    documents = _save(run, table_of(merged.columns, merged.facts, merged.chunk_starts))
    kept = {f"{number:06d}": np.packbits(kept) for number, kept in enumerate(merged.is_kept)}
    sizes = {f"size_{n:06d}": table.columns["num_bytes"] for n, table in enumerate(tables)}

    def train(file: Path) -> None:
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            staged = open_staged(config, run.objects.file(documents), Path(folder))
            documents_of = count_splits(config, staged, staged.splits[staged.is_kept])
            check_router_documents(run, documents_of)
            sample = functools.partial(_sample, run, staged, slices, tables, merged)
            tokenizer = tokenizer_for(config, staged, sample, progress)
            edge_tokens(tokenizer, edge_names(config))  # before hours of work
            file.write_bytes(tokenizer.file.read_bytes())

    artifacts = {
        "tokenizer": run.objects.write("tokenizers", "json", train),
        "documents": documents,
        "kept": _save(run, kept | sizes),
    }
    summary = {"documents": len(merged.columns["hashes"])}
    return [_done(claim, artifacts, summary, started)]


def tokenise(run: Run, claim: Claim, progress: OnProgress) -> list[Fact]:
    """Makes the documents of one slice tokens that stay in the corpus."""
    started, number = time.monotonic(), claim.task.slice
    (merged,) = run.ledger.facts.slices("prepare", "merge")
    text = run.ledger.facts.slices("prepare", "read")[number].artifacts["texts"]
    names = f"size_{number:06d}", f"{number:06d}"
    sizes, kept = _load(run, merged.artifacts["kept"], *names).values()
    is_kept = np.unpackbits(kept, count=len(sizes)).astype(bool)
    tokenizer = load_tokenizer(run.objects.file(merged.artifacts["tokenizer"]))
    total = int(sizes[is_kept].sum(dtype=np.int64))
    made: list[np.ndarray] = []

    def count(done: int) -> None:
        progress(PrepareProgress(stage="tokens", done=done, total=total, unit="bytes"))

    def write(file: Path) -> None:
        texts = texts_where(is_kept, sizes, _texts(run, text))
        made.append(tokenise_slice(data_config(run), texts, tokenizer, file, count))

    tokens = run.objects.write(KIND, "tokens", write)
    (lengths,) = made
    artifacts = {"tokens": tokens, "lengths": _save(run, {"lengths": lengths})}
    summary = {"documents": len(lengths), "tokens": int(lengths.sum(dtype=np.int64))}
    return [_done(claim, artifacts, summary, started)]


def join(run: Run, folder: Path, progress: OnProgress) -> Corpus:
    """Puts the tokens of all slices together, as a corpus in `folder`; resumes as `prepare`."""
    config = data_config(run)
    if (finished := finished_corpus(config, folder)) is not None:
        return finished
    objects, facts = run.objects, run.ledger.facts
    (merged,) = facts.slices("prepare", "merge")
    staging = staging_folder(config, folder)
    staged = open_staged(config, objects.file(merged.artifacts["documents"]), staging)
    content = objects.read_bytes(merged.artifacts["tokenizer"])
    write_whole(staging / "tokenizer.json", lambda stream: stream.write(content))
    tokenizer = load_tokenizer(staging / "tokenizer.json")

    def tokens_of(receipt: Receipt) -> np.ndarray:
        return np.frombuffer(objects.pages(receipt), tokenizer.token_type)

    tokens = [
        SliceTokens(
            _load(run, each.artifacts["lengths"])["lengths"],
            functools.partial(tokens_of, each.artifacts["tokens"]),
        )
        for each in facts.slices("prepare", "tokenise")
    ]
    counts = [int(staged.kept_in(chunk).sum()) for chunk in range(staged.num_chunks)]
    encoded = functools.partial(tokens_in_chunks, tokens, counts)
    check = functools.partial(check_router_documents, run)
    return write_corpus(config, folder, staged, tokenizer, encoded, progress, check)


def check_router_documents(run: Run, documents: dict[str, int]) -> None:
    """Raises `TooFewRouterDocuments` for a router that cannot be fitted to so many, before a base
    model is trained. A run of which others take the base model fits none.

    Args:
      run: which paths it has, and what it starts from.
      documents: of each split.
    """
    fits_a_router = run.given("router") is None and not run.given(ENDS_WITH_BASE)
    if fits_a_router and documents["router"] < run.config.num_paths:
        raise TooFewRouterDocuments(documents=documents["router"], paths=run.config.num_paths)


def data_config(run: Run) -> DataConfig:
    """The config's data settings, with the tokenizer that the run was given and its edge tokens."""
    data = run.config.data
    if (given := run.given("tokenizer")) is None:
        return data
    names = EdgeNames(*run.given("edge_names"))
    return data_from(data, run.objects.file(Receipt(*given)), names)


def is_to_be_joined(run: Run) -> bool:
    """Whether slices have made all tokens, and these are still there: `prepare` is not recorded."""
    done = run.ledger.facts.num_slices("prepare", "tokenise")
    return done == run.plan.slices > 1 and not _is_prepared(run)


def _is_prepared(run: Run) -> bool:
    return any(stage.stage == "prepare" for stage in run.ledger.facts.stages())


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


def _sample(
    run: Run,
    staged: Staged,
    slices: Sequence[SliceDone],
    tables: Sequence[SliceTable],
    merged: Merged,
    num_bytes: int,
) -> Iterator[str]:
    """Text to train the tokenizer on, in the order of the corpus."""
    chosen, start = staged.in_sample(num_bytes), 0
    for each, table, is_within in zip(slices, tables, merged.is_within, strict=True):
        count = int(is_within.sum())
        here = np.zeros(len(is_within), bool)
        here[is_within] = chosen[start : start + count]
        start += count
        if here.any():
            texts = _texts(run, each.artifacts["texts"])
            yield from texts_where(here, table.columns["num_bytes"], texts)


def _texts(run: Run, receipt: Receipt) -> memoryview:
    return memoryview(run.objects.pages(receipt) if receipt.num_bytes else b"")


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


STEPS: dict[str, Callable[[Run, Claim, OnProgress], list[Fact]]] = {
    "read": read,
    "merge": merge_slices,
    "tokenise": tokenise,
}
