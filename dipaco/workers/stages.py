"""`prepare` and `route`: from sources to tokens, from the base model to a router, shards and the
first modules.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np

from dipaco.control.plan import Arm
from dipaco.control.tasks import Claim, Fact, ModuleReady, StageDone
from dipaco.data.config import DataConfig
from dipaco.data.corpus import Corpus
from dipaco.data.first_tokens import first_tokens
from dipaco.data.gathered import gather, name_of
from dipaco.data.pack import RowPlan, save_plan
from dipaco.data.prepare import PrepareProgress, prepare
from dipaco.data.shards import Shard, build_shard, domain_table
from dipaco.receipt import Receipt
from dipaco.routing.router import Router, fit_router, load, save
from dipaco.runs.routing import features, route_documents
from dipaco.runs.run import Run
from dipaco.store.layout import remote_name, tokens_folder
from dipaco.store.tensors import save_tree


def prepare_corpus(
    run: Run, claim: Claim, progress: Callable[[PrepareProgress], None]
) -> list[Fact]:
    """Sources to tokens on disk, and the rows of a dense model, which trains on all of them."""
    started = time.monotonic()
    with _alone_at(run.layout.corpus_lock):
        corpus, files = _prepared(run, progress)
    manifest = corpus.manifest
    everything = build_shard(
        corpus,
        0,
        corpus.documents("train"),
        run.config.data.length,
        run.seed_for("rows", "everything"),
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
                "everything": _save_plan(run, everything.plan),
            },
            summary={
                "documents": manifest.documents,
                "tokens": manifest.tokens,
                "bytes": manifest.num_bytes,
                "domains": {domain.name: domain.documents for domain in manifest.domains},
                "left_out": manifest.left_out,
                "notes": list(manifest.notes),
            },
            seconds=time.monotonic() - started,
        )
    ]


def _prepared(run: Run, progress: Callable[[PrepareProgress], None]) -> tuple[Corpus, Receipt]:
    """The corpus, and an object that lists its files; in the bucket, where the run is in one."""
    layout, objects = run.layout, run.objects
    made_in = layout.corpus if objects.remote is None else layout.preparing
    corpus = prepare(_data_config(run), made_in, progress)
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
    """Prepares the corpus again where somebody deleted it, as a damaged one must be. In a bucket,
    nobody does.

    Raises:
      CorpusOfOtherText: the sources no longer give what the run has trained on.
    """
    is_prepared = "prepare" in {stage.stage for stage in run.ledger.stages()}
    manifest = run.layout.corpus / "manifest.json"
    if run.address.url is None and is_prepared and not manifest.exists():
        with _alone_at(run.layout.corpus_lock):
            if not manifest.exists():
                prepare(_data_config(run), run.layout.corpus, progress)
        _ = run.corpus  # is compared with what was recorded


@contextlib.contextmanager
def _alone_at(lock: Path) -> Generator[None]:
    """Waits until nobody else is here: two that write one corpus would spoil it, also where one
    of them has lost its claim and does not know yet.
    """
    with lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _data_config(run: Run) -> DataConfig:
    """The config's data settings, with the tokenizer that the run was given."""
    if (given := run.given("tokenizer")) is None:
        return run.config.data
    file = run.objects.file(Receipt(*given))
    return dataclasses.replace(run.config.data, tokenizer=str(file))


def route(run: Run, claim: Claim) -> list[Fact]:
    """Features, router, shards; and every arm's modules, cut from the base model. DiPaCo section
    2.4.
    """
    started = time.monotonic()
    config, corpus = run.config, run.corpus
    router = _router(run)
    shards = _build_shards(run, router)
    valid = _validation_documents(run)
    valid_paths = route_documents(run, router, corpus, valid)
    table = domain_table(corpus, shards)
    if run.address.url is not None:
        for documents in (*(shard.plan.documents for shard in shards), valid):
            name = tokens_folder(name_of(corpus.digest, documents))
            run.objects.write_folder(name, functools.partial(gather, corpus, documents))
    index = {
        "plans": [_save_plan(run, shard.plan) for shard in shards],
        "documents": [len(shard.documents) for shard in shards],
    }
    stage = StageDone(
        stage="route",
        artifacts={
            "router": run.objects.write_bytes("routers", "safetensors", save(router)),
            "shards": run.objects.write_bytes("shards", "json", json.dumps(index).encode()),
            "valid": save_tree(run.objects, "shards", {"documents": valid, "paths": valid_paths}),
        },
        summary={
            "documents": index["documents"],
            "domains": [
                {
                    name: int(count)
                    for name, count in zip(corpus.domain_names, row, strict=True)
                    if count
                }
                for row in table
            ],
            "valid": np.bincount(valid_paths, minlength=config.num_paths).tolist(),
        },
        seconds=time.monotonic() - started,
    )
    return [stage, *(fact for arm in run.plan.arms for fact in _first_modules(run, arm))]


def _router(run: Run) -> Router:
    """That of the run we started from, or one fitted to the documents set aside for it."""
    given = run.given("router")
    if given is not None:
        return load(run.objects.read_bytes(Receipt(*given)))
    prefixes = first_tokens(
        run.corpus, run.corpus.documents("router"), run.config.routing.prefix_tokens
    )
    return fit_router(
        run.config.routing,
        features(run, *prefixes),
        run.config.topology.choices,
        run.seed_for("router"),
    )


def _build_shards(run: Run, router: Router) -> list[Shard]:
    length, train = run.config.data.length, run.corpus.documents("train")
    paths = route_documents(run, router, run.corpus, train)
    return [
        build_shard(run.corpus, path, train[paths == path], length, run.seed_for("rows", path))
        for path in range(run.config.num_paths)
    ]


def _validation_documents(run: Run) -> np.ndarray:
    valid, most = run.corpus.documents("valid"), run.config.evaluation.max_documents
    if most is None or len(valid) <= most:
        return valid
    # The same documents whatever the run's seed, so that seeds can be compared.
    return np.sort(np.random.default_rng(0).permutation(valid)[:most])


def _first_modules(run: Run, arm: Arm) -> list[Fact]:
    """Modules at phase 0: those that the run was given, or the base model's parts, one object
    for a whole level.
    """
    given = run.given("modules") if arm.is_averaged else None
    if given is not None:
        receipts = {module: Receipt(*given[str(module)]) for module in arm.topology.modules}
    else:
        base = run.base_parts()
        by_level = {
            level.name: save_tree(
                run.objects, "modules", {name: base[name] for name in level.parts}
            )
            for level in arm.topology.levels
            if level.parts
        }
        receipts = {module: by_level[module.level] for module in arm.topology.modules}
    return [
        ModuleReady(
            arm=arm.name,
            module=module,
            phase=0,
            parameters=receipt,
            outer_state=None,
            gradient_norm=None,
        )
        for module, receipt in receipts.items()
    ]


def _save_plan(run: Run, plan: RowPlan) -> Receipt:
    return run.objects.write("shards", "npz", lambda file: save_plan(plan, file))
