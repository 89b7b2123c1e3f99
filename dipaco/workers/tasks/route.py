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
from typing import Any

import numpy as np

from dipaco.config import MODULAR
from dipaco.control.plan import Arm
from dipaco.control.tasks import Claim, Fact, ModuleReady, StageDone
from dipaco.data.config import DataConfig
from dipaco.data.corpus import Corpus
from dipaco.data.pack import RowPlan, load_plan, save_plan
from dipaco.data.prepare import PrepareProgress, prepare
from dipaco.data.shard_tokens import gather, name_of
from dipaco.data.shards import Shard, build_shard, domain_table, hold_out
from dipaco.receipt import Receipt
from dipaco.routing.calibration import is_near
from dipaco.routing.discriminative import calibrated, fit_classifier
from dipaco.routing.labels import best_paths
from dipaco.routing.router import Router, fit_router, load, save
from dipaco.runs.routing import features_of, route_documents
from dipaco.runs.run import Run
from dipaco.store.layout import remote_name, tokens_folder
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.errors import EmptyHoldOut


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


def route(run: Run, claim: Claim, *, is_first: bool = True) -> list[Fact]:
    """Features, router, shards; and, the first time, every arm's modules, cut from the base model.

    At an alternation the router is fitted to what the paths have said of its documents, and
    everything is routed anew; what was made before stays. Of several hosts that do it together, the
    first gathers the tokens of each shard. DiPaCo section 2.4.
    """
    started = time.monotonic()
    config, corpus, phase = run.config, run.corpus, claim.task.phase
    found = {"router": _router(run)} if phase == 0 else _refitted(run, phase)
    router = found["router"]
    shards, held_out = _build_shards(run, router)
    valid = _validation_documents(run)
    valid_paths = route_documents(run, router, corpus, valid)[:, 0]
    table = domain_table(corpus, shards)
    if run.address.url is not None and is_first:
        for documents in (*(shard.plan.documents for shard in shards), *held_out, valid):
            name = tokens_folder(name_of(corpus.digest, documents))
            run.objects.write_folder(name, functools.partial(gather, corpus, documents))
    index = {
        "plans": [_save_plan(run, shard.plan) for shard in shards],
        "documents": [len(shard.documents) for shard in shards],
    }
    artifacts = {
        "router": run.objects.write_bytes("routers", "safetensors", save(router)),
        "shards": run.objects.write_bytes("shards", "json", json.dumps(index).encode()),
        "valid": save_tree(run.objects, "shards", {"documents": valid, "paths": valid_paths}),
    }
    if config.inner.hold_out:
        tree = {f"{path:06d}": documents for path, documents in enumerate(held_out)}
        artifacts["held_out"] = save_tree(run.objects, "shards", tree)
    if "labels" in found:
        artifacts["labels"] = save_tree(run.objects, "shards", found["labels"])
    stage = StageDone(
        stage="route",
        phase=phase,
        artifacts=artifacts,
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
            **({} if phase == 0 else _what_changed(run, phase, shards, found)),
        },
        seconds=time.monotonic() - started,
    )
    if phase:
        return [stage]
    return [stage, *(fact for arm in run.plan.arms for fact in _first_modules(run, arm))]


def _router(run: Run) -> Router:
    """That of the run we started from, or one fitted to the documents set aside for it."""
    given = run.given("router")
    if given is not None:
        return load(run.objects.read_bytes(Receipt(*given)))
    return fit_router(
        run.config.routing,
        _router_features(run),
        run.config.topology.choices,
        run.seed_for("router"),
    )


def _router_features(run: Run) -> np.ndarray:
    return features_of(run, run.corpus, run.corpus.documents("router"))


def _refitted(run: Run, phase: int) -> dict[str, Any]:
    """The router after an alternation, and what it was fitted to.

    Where the router before says of every document what the paths say, there is nothing to learn,
    and it stays.
    """
    config, before = run.config, run.router_of(run.routing_of(MODULAR, phase - 1))
    scores = (load_tree(run.objects, receipt) for receipt in run.ledger.labels(MODULAR, phase))
    label_N = best_paths(score["sums"] for score in scores)
    features_ND = _router_features(run)
    assigned_N = before.assign(features_ND)[:, 0]
    is_right_N = assigned_N == label_N
    share = config.routing.target_share
    counts_P = np.bincount(assigned_N, minlength=config.num_paths)
    classifier = router = before
    if not (is_right_N.all() and (share is None or is_near(counts_P, np.array(share)))):
        classifier = fit_classifier(config.routing, features_ND, label_N, config.num_paths)
        router = calibrated(classifier, config.routing, features_ND, label_N)
    calibrated_N = router.assign(features_ND)[:, 0]
    return {
        "router": router,
        "labels": {"documents": run.corpus.documents("router"), "paths": label_N},
        "agreement": float(is_right_N.mean()),
        "agreement_after": float((calibrated_N == label_N).mean()),
        "before_calibration": np.bincount(
            classifier.assign(features_ND)[:, 0], minlength=config.num_paths
        ).tolist(),
        "after_calibration": np.bincount(calibrated_N, minlength=config.num_paths).tolist(),
    }


def _what_changed(run: Run, phase: int, shards: list[Shard], found: dict[str, Any]) -> Any:
    """What `status` shows of an alternation: how often the router before, and this one, sends a
    router document to the path that is best for it; how many documents have changed their path.
    """
    plans = run.shards_of(run.routing_of(MODULAR, phase - 1)).plans
    stayed = sum(
        len(np.intersect1d(load_plan(Path(run.objects.file(plan))).documents, shard.plan.documents))
        for plan, shard in zip(plans, shards, strict=True)
    )
    documents = sum(len(shard.plan.documents) for shard in shards)
    labels = np.bincount(found["labels"]["paths"], minlength=run.config.num_paths)
    return {
        "labels": labels.tolist(),
        # Of the router's documents, how many each path would get and gets.
        "before_calibration": found["before_calibration"],
        "after_calibration": found["after_calibration"],
        "agreement": found["agreement"],
        "agreement_after": found["agreement_after"],
        "moved": 1 - stayed / documents,
    }


def _build_shards(run: Run, router: Router) -> tuple[list[Shard], list[np.ndarray]]:
    """What each path trains on, and what of that is held out; with overlap, a document is in the
    shards of its best paths. DiPaCo section 2.4.
    """
    config, train = run.config, run.corpus.documents("train")
    choices_NK = route_documents(run, router, run.corpus, train, config.routing.overlap)
    shards, held_out = [], []
    for path in range(config.num_paths):
        documents, held = hold_out(
            run.corpus,
            train[(choices_NK == path).any(axis=1)],
            config.inner.hold_out,
            shortest=config.data.prefix_tokens + 1,
        )
        seed = run.seed_for("rows", path)
        shards.append(build_shard(run.corpus, path, documents, config.data.length, seed))
        if config.inner.hold_out and not len(held):
            raise EmptyHoldOut(path=path, documents=len(documents))
        held_out.append(held)
    return shards, held_out


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
    given = run.given("modules") if arm.is_routed else None
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
