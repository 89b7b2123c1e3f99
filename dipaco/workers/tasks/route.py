"""`route`: from the base model to a router, shards and the first modules. DiPaCo section 2.4."""

import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.planning.summaries import Alternated, Routed
from dipaco.control.planning.tasks import Claim, Fact, ModuleReady, StageDone
from dipaco.data.pack import load_plan
from dipaco.data.shard_tokens import shard_tokens_digest, write_shard_tokens
from dipaco.data.shards import Shard, build_shard, domain_table, hold_out, token_counts
from dipaco.data.windows import first_tokens
from dipaco.receipt import Receipt
from dipaco.routing.calibration import is_near
from dipaco.routing.config import LIKELIHOOD, SMALL_MODELS
from dipaco.routing.discriminative import calibrated, fit_classifier
from dipaco.routing.features import document_features
from dipaco.routing.labels import best_paths
from dipaco.routing.likelihood import balanced, balancing_nats
from dipaco.routing.router import Router, fit_router, load, save
from dipaco.runs.reading.routing_notes import sentence_on_shards
from dipaco.runs.routing import FeaturesOf, route_documents
from dipaco.runs.run import Run
from dipaco.runs.small_models import FittedModels, fit_small_models
from dipaco.schedule.arm import Arm
from dipaco.store.layout import shard_tokens_folder
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.errors import EmptyHoldOut
from dipaco.workers.row_plans import save_row_plan
from dipaco.workers.tasks.features import features_for, validation_documents


def route(run: Run, claim: Claim, *, is_first: bool = True) -> list[Fact]:
    """Fits the router, builds the shards and, at phase 0, cuts every arm's modules from the base
    model.

    At an alternation the router is fitted to the labels of the paths, or stays and the paths
    themselves choose by likelihood, and all documents are routed again; earlier routers and shards
    stay. Of several hosts, the first writes the tokens of each shard. DiPaCo section 2.4.
    """
    started, phase = time.monotonic(), claim.task.phase
    routed = _routed(run, phase)
    shards, held_out = _build_shards(run, routed.choices_NK)
    valid = validation_documents(run)
    shortlists_VK = routed.shortlists(run, valid)
    if run.address.url is not None and is_first:
        _write_tokens(run, [*(shard.plan.documents for shard in shards), *held_out, valid])
    counts = [len(shard.documents) for shard in shards]
    index = {"plans": [save_row_plan(run, shard.plan) for shard in shards], "documents": counts}
    validation = {"documents": valid, "paths": shortlists_VK[:, 0], "shortlists": shortlists_VK}
    artifacts = {
        "router": run.objects.write_bytes("routers", "safetensors", save(routed.router)),
        "shards": run.objects.write_bytes("shards", "json", json.dumps(index).encode()),
        "valid": save_tree(run.objects, "shards", validation),
        **_further_artifacts(run, phase, routed, shards, held_out),
    }
    summary = Routed(
        documents=counts,
        domains=_domains_of(run, shards),
        valid=np.bincount(shortlists_VK[:, 0], minlength=run.config.num_paths).tolist(),
        small_models_seconds=routed.small_models_seconds,
        outside_bounds=sentence_on_shards(run, counts, phase),
    )
    if routed.refit is not None:
        summary = _alternated(run, phase, shards, summary, routed.refit)
    stage = StageDone(
        stage="route",
        phase=phase,
        artifacts=artifacts,
        summary=summary.as_json(),
        seconds=time.monotonic() - started,
    )
    if phase:
        return [stage]
    return [stage, *(fact for arm in run.plan.arms for fact in _first_modules(run, arm))]


class _Routed(NamedTuple):
    """How the documents are divided."""

    router: Router
    choices_NK: np.ndarray  # paths of each training document
    features_of: FeaturesOf
    refit: "_Refit | None" = None  # of an alternation
    small: FittedModels | None = None  # that divided them
    small_models_seconds: float | None = None  # of fitting those

    def shortlists(self, run: Run, documents: np.ndarray) -> np.ndarray:
        """int [N, K], the K paths that are compared for each document, the router's first first."""
        compared = run.config.routing.num_compared(run.config.num_paths)
        return route_documents(run, self.router, run.corpus, documents, compared, self.features_of)


def _routed(run: Run, phase: int) -> _Routed:
    routing, features_of = run.config.routing, features_for(run, phase)
    if routing.kind == SMALL_MODELS and not phase:
        started = time.monotonic()
        small = _small_models(run)
        seconds = time.monotonic() - started
        run.small_models = small.models  # they route from here on, before the stage is recorded
        return _Routed(small.router, small.choices_NK, features_of, None, small, seconds)
    refit = None
    if phase and routing.rule == LIKELIHOOD:
        refit = _by_likelihood(run, phase)
    elif phase:
        refit = _refit(run, phase, features_of)
    router = _router(run, features_of) if refit is None else refit.router
    choices_NK = None if refit is None else refit.choices_NK
    if choices_NK is None:
        train = run.corpus.documents("train")
        choices_NK = route_documents(run, router, run.corpus, train, routing.overlap, features_of)
    return _Routed(router, choices_NK, features_of, refit)


def _write_tokens(run: Run, shares: list[np.ndarray]) -> None:
    """Writes the tokens of each share of the documents, for workers without the text."""
    for documents in shares:
        name = shard_tokens_folder(shard_tokens_digest(run.corpus.digest, documents))
        run.objects.write_folder(name, functools.partial(write_shard_tokens, run.corpus, documents))


def _further_artifacts(
    run: Run, phase: int, routed: _Routed, shards: list[Shard], held_out: list[np.ndarray]
) -> dict[str, Receipt]:
    """What some configs need beside router, shards and the paths of validation documents."""
    config, artifacts = run.config, {}
    if config.counts_tokens:
        size = config.model.vocab_size
        counts_PV = np.stack([token_counts(run.corpus, shard.plan, size) for shard in shards])
        artifacts["token_counts"] = save_tree(run.objects, "shards", {"token_counts": counts_PV})
    if config.inner.hold_out:
        tree = {f"{path:06d}": documents for path, documents in enumerate(held_out)}
        artifacts["held_out"] = save_tree(run.objects, "shards", tree)
    if config.routing.rule == LIKELIHOOD and config.routing.alternations and not phase:
        shortlists = {
            split: routed.shortlists(run, run.corpus.documents(split))
            for split in ("router", "train")
        }
        artifacts["shortlists"] = save_tree(run.objects, "shards", shortlists)
    if routed.small is not None:
        artifacts["small_models"] = save_tree(run.objects, "routers", routed.small.models)
    if routed.refit is not None:
        artifacts["labels"] = save_tree(run.objects, "shards", routed.refit.labels)
    return artifacts


def _domains_of(run: Run, shards: list[Shard]) -> list[dict[str, int]]:
    """Of each path: domain -> documents."""
    return [
        {
            name: int(count)
            for name, count in zip(run.corpus.domain_names, row, strict=True)
            if count
        }
        for row in domain_table(run.corpus, shards)
    ]


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
    prefix_tokens = config.data.prefix_tokens

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


def _alternated(
    run: Run, phase: int, shards: list[Shard], routed: Routed, refit: _Refit
) -> Alternated:
    """A routing's summary, and what its alternation changed."""
    plans = run.shards_of(run.routing_of(MODULAR, phase - 1)).plans
    stayed = sum(
        len(np.intersect1d(load_plan(Path(run.objects.file(plan))).documents, shard.plan.documents))
        for plan, shard in zip(plans, shards, strict=True)
    )
    documents = sum(len(shard.plan.documents) for shard in shards)
    labels = np.bincount(refit.labels["paths"], minlength=run.config.num_paths)
    return Alternated(
        **msgspec.structs.asdict(routed),
        labels=labels.tolist(),
        before_calibration=refit.before_calibration,
        after_calibration=refit.after_calibration,
        agreement=refit.agreement,
        agreement_after=refit.agreement_after,
        moved=1 - stayed / documents,
    )


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
