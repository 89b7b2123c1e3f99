"""`route`: from the base model to a router, shards and the first modules. DiPaCo section 2.4."""

import dataclasses
import functools
import json
import time
from typing import NamedTuple

import numpy as np

from dipaco.control.planning.summaries import Routed
from dipaco.control.planning.tasks import Claim, Fact, ModuleReady, StageDone
from dipaco.data.shard_tokens import shard_tokens_digest, write_shard_tokens
from dipaco.data.shards import Shard, build_shard, domain_table, hold_out, token_counts
from dipaco.data.splits import HELD
from dipaco.data.windows import first_tokens, predicted_bytes
from dipaco.receipt import Receipt
from dipaco.routing.config import LIKELIHOOD, SMALL_MODELS
from dipaco.routing.router import Router, fit_router, load, save
from dipaco.runs.reading.routing_notes import sentence_on_shards
from dipaco.runs.routing import FeaturesOf, base_features, fitted_router, route_documents
from dipaco.runs.run import Run
from dipaco.runs.small_models import FittedModels, fit_small_models
from dipaco.schedule.arm import Arm
from dipaco.store.layout import shard_tokens_folder
from dipaco.store.tensors import save_tree
from dipaco.workers.errors import EmptyHoldOut
from dipaco.workers.row_plans import save_row_plan
from dipaco.workers.tasks.alternation import Alternation, alternation, share_moved
from dipaco.workers.tasks.features import features_for, scored_of


def route(run: Run, claim: Claim, *, is_first: bool = True) -> list[Fact]:
    """Fits the router, builds the shards and, at phase 0, cuts every arm's modules from the base
    model.

    At an alternation the router is fitted to the labels of the paths, or stays and the paths
    themselves choose by likelihood, and all documents are routed again. Earlier routers and shards
    stay. The first host writes the tokens of each shard. DiPaCo section 2.4.
    """
    started, phase = time.monotonic(), claim.task.phase
    routed = _routed(run, phase)
    shards, held_out = _build_shards(run, routed.choices_NK)
    held = _held(run, routed)
    if run.address.url is not None and is_first:
        shares = [shard.plan.documents for shard in shards]
        _write_tokens(run, [*shares, *held_out, held["documents"]])
    counts = [len(shard.documents) for shard in shards]
    index = {"plans": [save_row_plan(run, shard.plan) for shard in shards], "documents": counts}
    artifacts = {
        "router": run.objects.write_bytes("routers", "safetensors", save(routed.router)),
        "shards": run.objects.write_bytes("shards", "json", json.dumps(index).encode()),
        "held": save_tree(run.objects, "shards", held),
        **_further_artifacts(run, phase, routed, shards, held_out),
    }
    summary = Routed(
        documents=counts,
        domains=_domains_of(run, shards),
        test=np.bincount(held["paths"][held["is_test"]], minlength=run.config.num_paths).tolist(),
        test_bytes=_predicted_bytes(run, held["documents"][held["is_test"]]),
        small_models_seconds=routed.small_models_seconds,
        outside_bounds=sentence_on_shards(run, counts, phase),
    )
    if routed.by is not None:
        summary = routed.by.summary(summary, share_moved(run, phase, shards))
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
    """The division of the documents among the paths."""

    router: Router
    choices_NK: np.ndarray  # paths of each training document
    features_of: FeaturesOf
    by: Alternation | None = None  # None: the first routing
    small: FittedModels | None = None  # the small models that divided them
    small_models_seconds: float | None = None  # seconds of fitting those

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
    by = alternation(run, phase, features_of) if phase else None
    router = _router(run, features_of) if by is None else by.router
    choices_NK = None if by is None else by.choices_NK
    if choices_NK is None:
        train = run.corpus.documents("train")
        choices_NK = route_documents(run, router, run.corpus, train, routing.overlap, features_of)
    return _Routed(router, choices_NK, features_of, by)


def _held(run: Run, routed: _Routed) -> dict[str, np.ndarray]:
    """The documents of tune and test that are scored, ascending, and their paths."""
    of = {split: scored_of(run, split) for split in HELD}
    documents_N = np.concatenate(list(of.values()))
    shortlists_NK = np.concatenate([routed.shortlists(run, each) for each in of.values()])
    order_N = np.argsort(documents_N)
    return {
        "documents": documents_N[order_N],
        "is_test": np.isin(documents_N, of["test"])[order_N],
        "paths": shortlists_NK[order_N, 0],
        "shortlists": shortlists_NK[order_N],
    }


def _predicted_bytes(run: Run, documents: np.ndarray) -> int:
    first = first_tokens(run.corpus, documents, run.config.data.length)
    return predicted_bytes(run.corpus.tokenizer(), *first, run.config.data.prefix_tokens)


def _write_tokens(run: Run, shares: list[np.ndarray]) -> None:
    """Writes the tokens of each share of the documents, for workers without the text."""
    for documents in shares:
        name = shard_tokens_folder(shard_tokens_digest(run.corpus.digest, documents))
        run.objects.write_folder(name, functools.partial(write_shard_tokens, run.corpus, documents))


def _further_artifacts(
    run: Run, phase: int, routed: _Routed, shards: list[Shard], held_out: list[np.ndarray]
) -> dict[str, Receipt]:
    """Objects that some configs need beside router, shards and paths of held documents."""
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
    if routed.by is not None:
        artifacts["labels"] = save_tree(run.objects, "shards", routed.by.labels)
    return artifacts


def _domains_of(run: Run, shards: list[Shard]) -> list[dict[str, int]]:
    """Domain -> number of documents, for each path."""
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
    return fitted_router(run, features_of(run, run.corpus, run.corpus.documents("router")))


def _small_models(run: Run) -> FittedModels:
    """Small models that share out the training documents, from k-means on."""
    assert run.given("router") is None, "`from_run` refuses such starts"
    config, train = run.config, run.corpus.documents("train")

    def features_of(documents: np.ndarray) -> np.ndarray:
        prefix = first_tokens(run.corpus, documents, config.data.prefix_tokens)
        return base_features(run, *prefix)

    clusters = fit_router(
        dataclasses.replace(config.routing, kind="kmeans"),
        features_of(run.corpus.documents("router")),
        config.topology.choices,
        run.seed_for("router"),
    )
    return fit_small_models(run, clusters.assign(features_of(train))[:, 0])


def _build_shards(run: Run, choices_NK: np.ndarray) -> tuple[list[Shard], list[np.ndarray]]:
    """The shard of each path, and the documents held out of it. With overlap, a document is in the
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
    """Modules at phase 0: the run's given ones, or the base model's parts, with one object shared
    by all modules of a level.
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
