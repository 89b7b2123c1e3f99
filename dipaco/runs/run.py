"""An open run: its config and plan, its facts and bytes, and what every task reads of them."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dipaco.config import MODULAR, RunConfig
from dipaco.control.database.location import DatabaseLocation
from dipaco.control.errors import NotAvailable
from dipaco.control.ledger import Ledger
from dipaco.control.planning.release import Release
from dipaco.control.planning.tasks import StageDone
from dipaco.errors import CorpusMissing
from dipaco.outer.vocabulary import RowCounts, counts_of
from dipaco.receipt import Receipt
from dipaco.routing.own_router import RouterFunctions
from dipaco.routing.router import Router
from dipaco.routing.router import load as load_router
from dipaco.runs.errors import (
    CorpusChanged,
)
from dipaco.runs.rules import RecordedRule, imported
from dipaco.schedule.plan import Plan
from dipaco.store.address import Address
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.layout import Layout, shard_tokens_folder
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId, assemble

if TYPE_CHECKING:
    from dipaco.data.corpus import Corpus, TokenReader
    from dipaco.runs.programs import Programs
    from dipaco.runs.scoring_programs import ScoringPrograms

MAX_OPEN_SHARDS = 4  # Files of so many are open at once.


class ShardIndex(NamedTuple):
    """The shards of the paths, in path order."""

    plans: list[Receipt]  # row plans
    documents: list[int]  # |D_i|, how many documents each has


class Run:
    """A run, open for reading and, while the lock of its folder is held, for work."""

    def __init__(
        self,
        address: Address,
        requested_config: RunConfig,
        database_location: DatabaseLocation,
        ledger: Ledger,
    ):
        self.address = address
        self.layout = Layout(address.folder)
        self.requested_config = requested_config  # the config as it was given
        self.database_location = database_location
        self.ledger = ledger
        self.objects = address.objects()
        self.computes_modules = True  # False once a step computed here has other bits.
        self._shard_tokens: dict[str, TokenReader] = {}  # open for reading, the oldest first
        self._routers: dict[str, Router] = {}  # digest -> router
        self._imported_rules: dict[str, Any] = {}  # kind -> rule
        self._token_counts: dict[str, np.ndarray] = {}  # the latest, by digest

    def open_ledger(self) -> Ledger:
        """The ledger for another thread of this process."""
        return self.ledger.for_thread()

    @functools.cached_property
    def identity(self) -> str:
        """Tells this run from any other, wherever each lies."""
        identity = self.ledger.meta.get("run")
        assert identity is not None, "a run that has begun has one"
        return identity

    @functools.cached_property
    def config(self) -> RunConfig:
        """The config as it runs: a base model that comes trained is not trained again."""
        if self.given("base_is_trained"):
            base = dataclasses.replace(self.requested_config.base, steps=0)
            return dataclasses.replace(self.requested_config, base=base)
        return self.requested_config

    @functools.cached_property
    def rules(self) -> dict[str, RecordedRule]:
        """The run's own rules, by the fields of `Rules`."""
        return {kind: RecordedRule(*rule) for kind, rule in (self.given("rules") or {}).items()}

    def rule(self, kind: str) -> Any:
        """The run's own rule, imported. None: the built-in.

        Raises:
          RuleNotImportable, RuleDiffers: it is not here as the run began with it.
        """
        if kind not in self.rules:
            return None
        if kind not in self._imported_rules:
            self._imported_rules[kind] = imported(kind, self.rules[kind])
        return self._imported_rules[kind]

    def import_rules(self) -> None:
        """Imports all rules now, and not in the middle of a task. A finished run may do without.
        Raises as `rule`.
        """
        if self.ledger.queue.unfinished_kinds():
            for kind in self.rules:
                self.rule(kind)

    @property
    def router_functions(self) -> RouterFunctions | None:
        """The functions of its own router. None: the built-in. Raises as `rule`."""
        rule = self.rule("router")
        return None if rule is None else rule(self.config.routing)

    @property
    def plan(self) -> Plan:
        return self.config.plan

    @functools.cached_property
    def corpus(self) -> "Corpus":
        """The prepared corpus.

        Raises:
          CorpusMissing: the task `prepare` is not done.
          CorpusChanged: it is not the corpus that the run has trained on.
        """
        from dipaco.data.corpus import Corpus

        fetch = None if self.address.url is None else self._fetch_corpus_file
        corpus = Corpus.open(self.layout.corpus, fetch)
        if corpus.digest != self.stage("prepare").artifacts["corpus"].digest:
            raise CorpusChanged(folder=self.layout.corpus)
        return corpus

    @functools.cached_property
    def corpus_files(self) -> dict[str, Receipt]:
        """The files of the corpus, by their names. Raises `CorpusMissing`."""
        try:
            files = self.stage("prepare").artifacts["corpus_files"]
        except NotAvailable as error:
            raise CorpusMissing(folder=self.layout.corpus) from error
        receipts = [Receipt(*file) for file in json.loads(self.objects.read_bytes(files))]
        return {Path(receipt.name).name: receipt for receipt in receipts}

    def _fetch_corpus_file(self, name: str) -> None:
        """Downloads a file of the corpus if it is not here, and verifies it."""
        self.objects.file(self.corpus_files[name])

    def tokens_of(self, documents: np.ndarray) -> "TokenReader":
        """Token reader for `documents` (numbers, ascending): the shard's own files if the run is in
        a bucket and has them, else the corpus.
        """
        if self.address.url is None:
            return self.corpus
        from dipaco.data.shard_tokens import ShardTokens, shard_tokens_digest

        name = shard_tokens_digest(self.stage("prepare").artifacts["corpus"].digest, documents)
        if name not in self._shard_tokens:
            try:
                folder = self.objects.folder(shard_tokens_folder(name))
            except (ObjectMissing, ObjectDamaged):
                return self.corpus  # its files are verified as well
            while len(self._shard_tokens) >= MAX_OPEN_SHARDS:
                del self._shard_tokens[next(iter(self._shard_tokens))]
            self._shard_tokens[name] = ShardTokens(folder, documents)
        return self._shard_tokens[name]

    @functools.cached_property
    def programs(self) -> "Programs":
        from dipaco.runs.programs import Programs

        return Programs(self.config, lambda: self.rule("path_loss"))

    @functools.cached_property
    def scoring_programs(self) -> "ScoringPrograms":
        from dipaco.runs.scoring_programs import ScoringPrograms

        return ScoringPrograms(self.config)

    @property
    def phases_reached(self) -> int:
        """The last phase that all modules of the modular arm have reached. -1 if there is none."""
        return self.ledger.progress.phases_reached(MODULAR, len(self.config.topology.modules))

    def stage(self, name: str, phase: int = 0) -> StageDone:
        return self.ledger.facts.stage(name, phase)

    def routing_of(self, arm: str, phase: int) -> StageDone:
        """The routing for a phase of an arm: router, shards and hold-outs of the last alternation.
        Raises `NotAvailable`.
        """
        return self.stage("route", self.plan.arm(arm).routed_at(phase))

    def router_of(self, routing: StageDone) -> Router:
        """The router of a routing."""
        receipt = routing.artifacts["router"]
        if receipt.digest not in self._routers:
            saved = self.objects.read_bytes(receipt)
            self._routers[receipt.digest] = load_router(saved, self.router_functions)
        return self._routers[receipt.digest]

    def shards_of(self, routing: StageDone) -> ShardIndex:
        """The shards of a routing."""
        index = json.loads(self.objects.read_bytes(routing.artifacts["shards"]))
        plans = [Receipt(*receipt) for receipt in index["plans"]]
        return ShardIndex(plans, index["documents"])

    def counts_through(self, arm: str, module: ModuleId, phase: int) -> RowCounts | None:
        """Counts of each token in the shards of the paths through a module, in a phase. None if its
        rows of the vocabulary are averaged like all else.
        """
        plan = self.plan.arm(arm)
        has_rows = plan.is_routed and {"embed", "head"} & set(plan.topology.parts_of(module))
        if self.config.outer.vocabulary_rows != "holders" or not has_rows:
            return None
        counts = self.token_counts(self.routing_of(arm, phase))
        through = plan.topology.paths_through(module)
        return counts_of(counts, through, plan.contributors(module, phase))

    def present_tokens(self, arm: str, path: int, phase: int) -> np.ndarray | None:
        """bool [V]: the tokens that a path's shard has in a phase. None if training does not ask
        for them. Dense arms have all text.
        """
        if not self.config.inner.freeze_absent_tokens or not self.plan.arm(arm).is_routed:
            return None
        return self.token_counts(self.routing_of(arm, phase))[path] > 0

    def token_counts(self, routing: StageDone) -> np.ndarray:
        """int64 [P, V]: how often each token occurs in the shard of each path. Only where
        `config.counts_tokens`.
        """
        receipt = routing.artifacts["token_counts"]
        if receipt.digest not in self._token_counts:
            self._token_counts = {receipt.digest: load_tree(self.objects, receipt)["token_counts"]}
        return self._token_counts[receipt.digest]

    def parts_at(self, arm: str, path: int, phase: int) -> dict[str, Any]:
        """A path as it is at the start of a phase, assembled."""
        topology = self.plan.arm(arm).topology
        modules = {m: self.parameters(arm, m, phase) for m in topology.modules_of(path)}
        return assemble(modules, topology.modules_of(path))

    def parameters(self, arm: str, module: ModuleId, phase: int) -> dict[str, Any]:
        """A module's parameters at the start of a phase, checked against their digest."""
        return load_tree(self.objects, self.ledger.facts.module(arm, module, phase).parameters)

    def base_parts(self) -> dict[str, Any]:
        """The base model, pre-trained. Raises `NotAvailable`."""
        base = self.plan.base
        (module,) = base.topology.modules
        return self.parameters(base.name, module, base.phases)

    def base_hidden(self) -> Any:
        """tokens int32 [B, T] -> hidden states [B, T, D] of the base model, for the router. It is
        on the device for as long as the caller keeps this.
        """
        return self.scoring_programs.hidden(self.base_parts())

    @functools.cached_property
    def small_models(self) -> dict[str, Any]:
        """Parameters of the small models that route. Only with `routing.kind` = small_models."""
        return load_tree(self.objects, self.stage("route").artifacts["small_models"])

    def path_of(self, release: Release, path: int) -> dict[str, Any]:
        """One path of a release, assembled."""
        receipts = release.modules_of(path)
        modules = {module: load_tree(self.objects, receipt) for module, receipt in receipts.items()}
        return assemble(modules, tuple(receipts))

    def given(self, key: str) -> Any:
        """A JSON value of what the run starts from (`--init-from`, `--from`), or None."""
        text = self.ledger.meta.get(key)
        return None if text is None else json.loads(text)

    def seed_for(self, *names: str | int) -> int:
        """A seed for one purpose, from the run's seed: 32 bits."""
        words = [int.from_bytes(str(name).encode(), "little") for name in names]
        return int(np.random.SeedSequence([self.config.seed, *words]).generate_state(1)[0])
