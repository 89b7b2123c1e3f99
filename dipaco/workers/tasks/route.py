"""`route`: from the base model to a router, shards and the first modules. DiPaCo section 2.4."""

import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dipaco.config import MODULAR
from dipaco.control.plan import Arm
from dipaco.control.tasks import Claim, Fact, ModuleReady, StageDone
from dipaco.data.first_tokens import first_tokens
from dipaco.data.pack import load_plan
from dipaco.data.shard_tokens import shard_tokens_digest, write_shard_tokens
from dipaco.data.shards import Shard, build_shard, domain_table, hold_out, token_counts
from dipaco.receipt import Receipt
from dipaco.routing.calibration import is_near
from dipaco.routing.config import LIKELIHOOD, SMALL_MODELS
from dipaco.routing.discriminative import calibrated, fit_classifier
from dipaco.routing.features import document_features
from dipaco.routing.labels import best_paths
from dipaco.routing.likelihood import balanced, balancing_nats
from dipaco.routing.router import Router, fit_router, load, save
from dipaco.runs.routing import FeaturesOf, route_documents
from dipaco.runs.run import Run
from dipaco.runs.small_models import FittedModels, fit_small_models
from dipaco.store.layout import shard_tokens_folder
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.errors import EmptyHoldOut
from dipaco.workers.routing_notes import shards_outside_bounds
from dipaco.workers.row_plans import save_row_plan
from dipaco.workers.tasks.route_slices import features_for, validation_documents


def route(run: Run, claim: Claim, *, is_first: bool = True) -> list[Fact]:
    """Fits the router, builds the shards and, at phase 0, cuts every arm's modules from the base
    model.

    At an alternation the router is fitted to the labels of the paths, or stays and the paths
    themselves choose by likelihood, and all documents are routed again; earlier routers and shards
    stay. Of several hosts, the first writes the tokens of each
    shard. DiPaCo section 2.4.
    """
    started = time.monotonic()
    config, corpus, phase = run.config, run.corpus, claim.task.phase
    by_likelihood = config.routing.rule == LIKELIHOOD
    features_of, refit = features_for(run, phase), None
    if phase:
        refit = _by_likelihood(run, phase) if by_likelihood else _refit(run, phase, features_of)
    small, small_seconds = None, {}
    if config.routing.kind == SMALL_MODELS and not phase:
        small_started = time.monotonic()
        small = _small_models(run)
        small_seconds = {"small_models_seconds": time.monotonic() - small_started}
        run.small_models = small.models  # they route from here on, before the stage is recorded
        router, choices_NK = small.router, small.choices_NK
    else:
        router = _router(run, features_of) if refit is None else refit.router
        choices_NK = None if refit is None else refit.choices_NK
    if choices_NK is None:
        train = corpus.documents("train")
        overlap = config.routing.overlap
        choices_NK = route_documents(run, router, corpus, train, overlap, features_of)
    shards, held_out = _build_shards(run, choices_NK)
    valid = validation_documents(run)
    compared = config.routing.num_compared(config.num_paths)
    shortlists = route_documents(run, router, corpus, valid, compared, features_of)
    valid_paths = shortlists[:, 0]
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
        "valid": save_tree(
            run.objects,
            "shards",
            {"documents": valid, "paths": valid_paths, "shortlists": shortlists},
        ),
    }
    if config.counts_tokens:
        size = config.model.vocab_size
        counts_PV = np.stack([token_counts(corpus, shard.plan, size) for shard in shards])
        artifacts["token_counts"] = save_tree(run.objects, "shards", {"token_counts": counts_PV})
    if config.inner.hold_out:
        tree = {f"{path:06d}": documents for path, documents in enumerate(held_out)}
        artifacts["held_out"] = save_tree(run.objects, "shards", tree)
    if by_likelihood and config.routing.alternations and not phase:
        shortlists = {
            split: route_documents(
                run, router, corpus, corpus.documents(split), compared, features_of
            )
            for split in ("router", "train")
        }
        artifacts["shortlists"] = save_tree(run.objects, "shards", shortlists)
    if small is not None:
        artifacts["small_models"] = save_tree(run.objects, "routers", small.models)
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
            **small_seconds,
            **shards_outside_bounds(run, index["documents"], phase),
            **({} if refit is None else _alternation_summary(run, phase, shards, refit)),
        },
        seconds=time.monotonic() - started,
    )
    if phase:
        return [stage]
    return [stage, *(fact for arm in run.plan.arms for fact in _first_modules(run, arm))]


def _router(run: Run, features_of: FeaturesOf) -> Router:
    """The router that the run was given, or one fitted to the documents set aside for it."""
    given = run.given("router")
    if given is not None:
        return load(run.objects.read_bytes(Receipt(*given)), run.router_functions)
    return _fitted(run, features_of(run, run.corpus, run.corpus.documents("router")))


def _fitted(run: Run, features_ND: np.ndarray, label_N: np.ndarray | None = None) -> Router:
    return fit_router(
        run.config.routing,
        features_ND,
        run.config.topology.choices,
        run.seed_for("router"),
        run.router_functions,
        label_N,
    )


def _small_models(run: Run) -> FittedModels:
    """Small models that share out the training documents, from k-means on."""
    assert run.given("router") is None, "`from_run` refuses such starts"
    config, train = run.config, run.corpus.documents("train")
    prefix_tokens = config.routing.prefix_tokens

    def base_features(documents: np.ndarray) -> np.ndarray:
        return document_features(
            run.base_hidden, *first_tokens(run.corpus, documents, prefix_tokens), batch_size=256
        )

    clusters = fit_router(
        dataclasses.replace(config.routing, kind="kmeans"),
        base_features(run.corpus.documents("router")),
        config.topology.choices,
        run.seed_for("router"),
    )
    return fit_small_models(run, clusters.assign(base_features(train))[:, 0])


class _Refit(NamedTuple):
    """The router after an alternation, and what it was fitted to."""

    router: Router
    labels: dict[str, np.ndarray]  # documents int64 [N], and the best path of each, `paths` [N]
    agreement: float  # share of the labels that the router before assigns
    agreement_after: float
    before_calibration: list[int]  # documents of each path
    after_calibration: list[int]
    choices_NK: np.ndarray | None = None  # paths of each training document; None = by the router


def _refit(run: Run, phase: int, features_of: FeaturesOf) -> _Refit:
    """Fits the router to the labels of an alternation.

    A router that already assigns every document to its best path stays as it is.
    """
    config, before = run.config, run.router_of(run.routing_of(MODULAR, phase - 1))
    scores = (
        load_tree(run.objects, receipt) for receipt in run.ledger.facts.labels(MODULAR, phase)
    )
    label_N = best_paths(score["sums"] for score in scores)
    features_ND = features_of(run, run.corpus, run.corpus.documents("router"))
    assigned_N = before.assign(features_ND)[:, 0]
    is_right_N = assigned_N == label_N
    share = config.routing.target_share
    counts_P = np.bincount(assigned_N, minlength=config.num_paths)
    classifier = router = before
    if not (is_right_N.all() and (share is None or is_near(counts_P, np.array(share)))):
        if run.router_functions is not None:
            classifier = router = _fitted(run, features_ND, label_N)
        else:
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


def _by_likelihood(run: Run, phase: int) -> _Refit:
    """Divides the documents by what the paths say of their first tokens, balanced by prices that
    are fitted to the router's documents. The router stays: it makes the shortlists.
    """
    config, routing = run.config, run.config.routing
    router = run.router_of(run.routing_of(MODULAR, phase - 1))
    shortlists = load_tree(run.objects, run.stage("route").artifacts["shortlists"])
    scores = {split: np.zeros(each.shape) for split, each in shortlists.items()}
    for path, receipt in enumerate(run.ledger.facts.labels(MODULAR, phase)):
        for split, prefix_M in load_tree(run.objects, receipt).items():
            scores[split][shortlists[split] == path] = prefix_M
    for score_Nn in scores.values():
        score_Nn[:, 0] += routing.prior_nats
    price_P = balancing_nats(
        scores["router"],
        shortlists["router"],
        config.num_paths,
        floor=routing.floor,
        capacity=routing.capacity,
    )

    def paths(split: str, price_P: np.ndarray, num_choices: int = 1) -> np.ndarray:
        return balanced(scores[split], shortlists[split], price_P, num_choices)

    label_N = paths("router", np.zeros(config.num_paths))[:, 0]
    priced_N = paths("router", price_P)[:, 0]
    return _Refit(
        router=router,
        labels={"documents": run.corpus.documents("router"), "paths": label_N, "prices": price_P},
        agreement=float((shortlists["router"][:, 0] == label_N).mean()),
        agreement_after=float((priced_N == label_N).mean()),
        before_calibration=np.bincount(label_N, minlength=config.num_paths).tolist(),
        after_calibration=np.bincount(priced_N, minlength=config.num_paths).tolist(),
        choices_NK=paths("train", price_P, routing.overlap),
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


def _build_shards(run: Run, choices_NK: np.ndarray) -> tuple[list[Shard], list[np.ndarray]]:
    """The shard of each path, and the documents held out of it; with overlap, a document is in the
    shards of several paths. DiPaCo section 2.4.
    """
    config, train = run.config, run.corpus.documents("train")
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
        )
        for module, receipt in receipts.items()
    ]
