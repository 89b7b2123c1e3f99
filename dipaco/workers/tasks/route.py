"""`route`: from the base model to a router, shards and the first modules. DiPaCo section 2.4."""

import functools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dipaco.config import MODULAR
from dipaco.control.plan import Arm
from dipaco.control.tasks import Claim, Fact, ModuleReady, StageDone
from dipaco.data.pack import load_plan
from dipaco.data.shard_tokens import shard_tokens_digest, write_shard_tokens
from dipaco.data.shards import Shard, build_shard, domain_table, hold_out, token_counts
from dipaco.receipt import Receipt
from dipaco.routing.calibration import is_near
from dipaco.routing.discriminative import calibrated, fit_classifier
from dipaco.routing.labels import best_paths
from dipaco.routing.router import Router, fit_router, load, save
from dipaco.runs.routing import features_of, route_documents
from dipaco.runs.run import Run
from dipaco.store.layout import shard_tokens_folder
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.errors import EmptyHoldOut
from dipaco.workers.row_plans import save_row_plan


def route(run: Run, claim: Claim, *, is_first: bool = True) -> list[Fact]:
    """Fits the router, builds the shards and, at phase 0, cuts every arm's modules from the base
    model.

    At an alternation the router is fitted to the labels of the paths, and all documents are routed
    again; earlier routers and shards stay. Of several hosts, the first writes the tokens of each
    shard. DiPaCo section 2.4.
    """
    started = time.monotonic()
    config, corpus, phase = run.config, run.corpus, claim.task.phase
    refit = None if phase == 0 else _refit(run, phase)
    router = _router(run) if refit is None else refit.router
    shards, held_out = _build_shards(run, router)
    valid = _validation_documents(run)
    valid_paths = route_documents(run, router, corpus, valid)[:, 0]
    table = domain_table(corpus, shards)
    if run.address.url is not None and is_first:
        for documents in (*(shard.plan.documents for shard in shards), *held_out, valid):
            name = shard_tokens_folder(shard_tokens_digest(corpus.digest, documents))
            run.objects.write_folder(name, functools.partial(write_shard_tokens, corpus, documents))
    index = {
        "plans": [save_row_plan(run, shard.plan) for shard in shards],
        "documents": [len(shard.documents) for shard in shards],
    }
    artifacts = {
        "router": run.objects.write_bytes("routers", "safetensors", save(router)),
        "shards": run.objects.write_bytes("shards", "json", json.dumps(index).encode()),
        "valid": save_tree(run.objects, "shards", {"documents": valid, "paths": valid_paths}),
    }
    if config.outer.vocabulary_rows == "holders":
        size = config.model.vocab_size
        counts_PV = np.stack([token_counts(corpus, shard.plan, size) for shard in shards])
        artifacts["token_counts"] = save_tree(run.objects, "shards", {"token_counts": counts_PV})
    if config.inner.hold_out:
        tree = {f"{path:06d}": documents for path, documents in enumerate(held_out)}
        artifacts["held_out"] = save_tree(run.objects, "shards", tree)
    if refit is not None:
        artifacts["labels"] = save_tree(run.objects, "shards", refit.labels)
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
            **({} if refit is None else _alternation_summary(run, phase, shards, refit)),
        },
        seconds=time.monotonic() - started,
    )
    if phase:
        return [stage]
    return [stage, *(fact for arm in run.plan.arms for fact in _first_modules(run, arm))]


def _router(run: Run) -> Router:
    """The router that the run was given, or one fitted to the documents set aside for it."""
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


class _Refit(NamedTuple):
    """The router after an alternation, and what it was fitted to."""

    router: Router
    labels: dict[str, np.ndarray]  # documents int64 [N], and the best path of each, `paths` [N]
    agreement: float  # share of the labels that the router before assigns
    agreement_after: float
    before_calibration: list[int]  # documents of each path
    after_calibration: list[int]


def _refit(run: Run, phase: int) -> _Refit:
    """Fits the router to the labels of an alternation.

    A router that already assigns every document to its best path stays as it is.
    """
    config, before = run.config, run.router_of(run.routing_of(MODULAR, phase - 1))
    scores = (
        load_tree(run.objects, receipt) for receipt in run.ledger.facts.labels(MODULAR, phase)
    )
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
    return _Refit(
        router=router,
        labels={"documents": run.corpus.documents("router"), "paths": label_N},
        agreement=float(is_right_N.mean()),
        agreement_after=float((calibrated_N == label_N).mean()),
        before_calibration=np.bincount(
            classifier.assign(features_ND)[:, 0], minlength=config.num_paths
        ).tolist(),
        after_calibration=np.bincount(calibrated_N, minlength=config.num_paths).tolist(),
    )


def _alternation_summary(
    run: Run, phase: int, shards: list[Shard], refit: _Refit
) -> dict[str, Any]:
    """What `status` shows of an alternation: how often the router before and this one send a router
    document to its best path, and how many documents have changed their path.
    """
    plans = run.shards_of(run.routing_of(MODULAR, phase - 1)).plans
    stayed = sum(
        len(np.intersect1d(load_plan(Path(run.objects.file(plan))).documents, shard.plan.documents))
        for plan, shard in zip(plans, shards, strict=True)
    )
    documents = sum(len(shard.plan.documents) for shard in shards)
    labels = np.bincount(refit.labels["paths"], minlength=run.config.num_paths)
    return {
        "labels": labels.tolist(),
        # How many of the router's documents each path gets, before and after calibration.
        "before_calibration": refit.before_calibration,
        "after_calibration": refit.after_calibration,
        "agreement": refit.agreement,
        "agreement_after": refit.agreement_after,
        "moved": 1 - stayed / documents,
    }


def _build_shards(run: Run, router: Router) -> tuple[list[Shard], list[np.ndarray]]:
    """The shard of each path, and the documents held out of it; with overlap, a document is in the
    shards of several paths. DiPaCo section 2.4.
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
    # The same documents for every seed of the run, so that seeds can be compared.
    return np.sort(np.random.default_rng(0).permutation(valid)[:most])


def _first_modules(run: Run, arm: Arm) -> list[Fact]:
    """Modules at phase 0: those that the run was given, or the base model's parts, with one object
    shared by all modules of a level.
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
