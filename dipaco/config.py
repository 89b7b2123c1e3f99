"""`RunConfig`: the settings of all rooms, the checks across them, and the plan of the run.

A config is a Python file with a function `run() -> RunConfig`; a variant is a small edit of another
(`dataclasses.replace`). No JAX here, so that `dipaco config show` and a wrong `--set` answer
immediately.
"""

import dataclasses
import functools
import json
import math
from typing import Literal, get_args

from dipaco.control.grace import AdaptiveGrace
from dipaco.control.phase_steps import steps_by_speed
from dipaco.control.plan import BASE, Arm, Plan, one_model, one_path
from dipaco.data.config import DataConfig
from dipaco.data.prompts import SampleSettings
from dipaco.errors import BadSetting, SettingsDisagree
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MeshConfig, ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import (
    LIKELIHOOD,
    SMALL_MODELS,
    RerouteConfig,
    RoutingConfig,
    SmallModelSettings,
)
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Topology

MODULAR = "modular"
Baseline = Literal["dense", "data_parallel", "dense_equal_tokens"]
DENSE, DATA_PARALLEL, DENSE_EQUAL_TOKENS = BASELINES = get_args(Baseline)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """The dense model that all modules start from, and that the router's features come from."""

    steps: int = 24_000
    """Optimiser steps (DiPaCo section 4); 0 = modules start from scratch, and the features are
    those of a random model."""
    steps_per_phase: int = 1000
    """Optimiser steps between two saves of it."""
    paths: int = 1
    """Paths, all alike, that as many workers train it as: they share `base.steps` and the text, and
    are averaged every `base.steps_per_phase` steps of each, by outer steps (DiLoCo)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How releases are evaluated."""

    every_phases: int = 1
    """Phases between two evaluations; the last phase is always evaluated."""
    max_documents: int | None = None
    """Documents of the validation split that are scored, the same for every seed; None = all."""
    batch_size: int = 64
    """Documents scored at once; changes results by rounding only."""
    best_path: bool = True
    """Whether the last release is scored under every path: for the row of the best path of each
    document, and for the perplexity of a document under the other paths."""
    ensembles: bool = True
    """Whether the report also has rows that mix the predictions of several paths; they need
    `evaluation.best_path`."""
    ensemble_temperature: float = 2.0
    """What the logarithms of the paths' posterior are divided by in those rows, a plain number:
    above 1, paths that are less likely count for more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What the report reckons with; nothing that is trained depends on it."""

    link_megabits: tuple[float, ...] = (20.0,)
    """Megabits a second of every machine's link, up and down together; 20 is a home's. One rate or
    several: each is a column of the report."""

    def __post_init__(self):
        links = self.link_megabits
        if not (links and all(0 < link < math.inf for link in links)):
            raise BadSetting(
                name="report.link_megabits",
                value=links,
                expected="one rate or several, each above 0 and finite, as in 20,100",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that the result of a run depends on. Two runs of equal configs on machines of one
    kind are equal bit for bit, except with `outer.quorum` and `inner.least_steps_share`, where
    timing matters.
    """

    name: str
    """The run's name, and that of the model that is served."""
    model: ModelConfig
    topology: Topology
    """What is shared: levels of the model's parts, and the modules of each (DiPaCo section 2.3).
    `--set topology=2x3` makes a grid: two levels, of 2 and of 3 modules, over which the model's
    blocks are spread in order, the embedding with the first level, final norm and head with the
    last. Other patterns are written in a config file."""
    phases: int
    """Phases of the run, each of which ends with an outer step (DiPaCo's T)."""
    seed: int = 0
    """Number that parameters, row order and k-means are drawn from; the corpus does not depend on
    it."""
    data: DataConfig = DataConfig()
    base: BaseSettings = BaseSettings()
    routing: RoutingConfig = RoutingConfig()
    small_models: SmallModelSettings = SmallModelSettings()
    inner: InnerSettings = InnerSettings()
    outer: OuterSettings = OuterSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    samples: SampleSettings = SampleSettings()
    reroute: RerouteConfig = RerouteConfig()
    mesh: MeshConfig = MeshConfig()
    retention: RetentionSettings = RetentionSettings()
    report: ReportSettings = ReportSettings()
    baselines: tuple[Baseline, ...] = (DENSE, DENSE_EQUAL_TOKENS)
    """Dense models of a path's size that are trained beside the modular one, from the same base
    model: `dense` takes the steps of one path, `dense_equal_tokens` those of all paths together,
    `data_parallel` is trained in lock-step by as many machines as there are paths. `()` = none."""

    def __post_init__(self):
        self.topology.check_owns(part_names(self.model))
        _at_least("phases", self.phases, 1)
        if not 0 <= self.seed < 2**63:
            raise BadSetting(name="seed", value=self.seed, expected="0 to 2^63 - 1")
        _at_least("base.steps", self.base.steps, 0)
        _at_least("base.steps_per_phase", self.base.steps_per_phase, 1)
        _at_least("base.paths", self.base.paths, 1)
        _at_least("evaluation.every_phases", self.evaluation.every_phases, 1)
        _at_least("evaluation.batch_size", self.evaluation.batch_size, 1)
        if not 0 < self.evaluation.ensemble_temperature < math.inf:
            raise BadSetting(
                name="evaluation.ensemble_temperature",
                value=self.evaluation.ensemble_temperature,
                expected="above 0, and finite",
            )
        if self.evaluation.max_documents is not None:
            _at_least("evaluation.max_documents", self.evaluation.max_documents, 1)
        if unknown := set(self.baselines) - set(BASELINES):
            raise BadSetting(
                name="baselines",
                value=sorted(unknown)[0],
                expected=f"any of {', '.join(BASELINES)}",
            )
        _agree("data.vocab_size", self.data.vocab_size, "model.vocab_size", self.model.vocab_size)
        _agree(
            "data.prefix_tokens",
            self.data.prefix_tokens,
            "routing.prefix_tokens",
            self.routing.prefix_tokens,
        )
        if not self.data.prefix_tokens < self.data.length <= self.model.max_length:
            raise SettingsDisagree(
                problem=f"`data.length` is {self.data.length}; it must be above "
                f"`data.prefix_tokens` ({self.data.prefix_tokens}) and at most "
                f"`model.max_length` ({self.model.max_length})"
            )
        if self.data.length % self.inner.loss_chunks:
            raise SettingsDisagree(
                problem=f"`inner.loss_chunks` is {self.inner.loss_chunks}, and rows of "
                f"`data.length` ({self.data.length}) tokens cannot be cut into that many equal "
                "lengths"
            )
        for arm in (self.plan.base, *self.plan.arms):
            if 0 < arm.total_steps <= self.inner.warmup_steps:
                raise SettingsDisagree(
                    problem=f"`inner.warmup_steps` is {self.inner.warmup_steps}, and "
                    f"`{arm.name}` takes only {arm.total_steps} steps: warm up for fewer, or "
                    "train longer"
                )
        room = self.model.max_length - self.data.prefix_tokens
        if self.samples.prompts and self.samples.tokens > room:
            raise SettingsDisagree(
                problem=f"`samples.tokens` is {self.samples.tokens}, and after a prompt of "
                f"`data.prefix_tokens` the context of `model.max_length` has room for {room}"
            )
        self._check_paths()
        self._check_synchronous()
        self._check_delay()
        self._check_retention()
        if self.routing.kind in ("product_kmeans", SMALL_MODELS) and not self.topology.choices:
            raise SettingsDisagree(
                problem=f"`routing.kind` is {self.routing.kind}, but the topology offers no choice:"
                " use kmeans"
            )

    def _check_synchronous(self) -> None:
        """Refuses settings of contributions, or of single paths, beside `outer.synchronous`."""
        without_meaning = {
            "outer.path_share": self.outer.path_share != 1,
            "outer.codec": self.outer.codec != "none",
            "outer.quorum": self.outer.quorum != 1,
            "outer.vocabulary_rows": self.outer.vocabulary_rows != "documents",
            "outer.isotropic": self.outer.isotropic,
            "outer.delay": self.outer.delay > 0,
            "outer.stagger": self.outer.stagger,
            "routing.alternations": bool(self.routing.alternations),
            "inner.hold_out": self.inner.hold_out > 0,
            "inner.least_steps_share": self.inner.least_steps_share < 1,
            "inner.absent_tokens": self.inner.absent_tokens != "plain",
        }
        for name, is_set in without_meaning.items():
            if self.outer.synchronous and is_set:
                raise SettingsDisagree(
                    problem=f"`outer.synchronous` is on, and so is `{name}`; paths that step "
                    "together do without it"
                )

    def _check_delay(self) -> None:
        """A path takes late modules inside a phase, by itself."""
        least = steps_by_speed(0.0, self.inner.steps, self.inner.least_steps_share)
        if self.outer.delay >= least:
            names = "`inner.steps`"
            if least < self.inner.steps:
                names += " times `inner.least_steps_share`"
            raise SettingsDisagree(
                problem=f"`outer.delay` is {self.outer.delay}, and a phase has {names} ({least}) "
                "steps: modules are taken within it, so delay fewer"
            )
        if self.outer.delay and (stacked := self.inner.stacked_paths) > 1:
            raise SettingsDisagree(
                problem=f"`outer.delay` is on, and `inner.stacked_paths` is {stacked}: each would "
                "wait for the modules of all of them; expected 1"
            )
        if not self.outer.stagger:
            return
        if sum(bool(level.parts) for level in self.topology.levels) < 2:
            raise SettingsDisagree(
                problem="`outer.stagger` is on, and one level owns all parts: levels step in turn, "
                "so there must be two or more"
            )
        shares = {
            "outer.path_share": self.outer.path_share,
            "outer.quorum": self.outer.quorum,
            "inner.least_steps_share": self.inner.least_steps_share,
        }
        for name, share in shares.items():
            if share != 1:
                raise SettingsDisagree(
                    problem=f"`outer.stagger` is on, and so is `{name}`: what a path contributes "
                    "to a level is of all phases since that level's last step"
                )

    def _check_retention(self) -> None:
        """Refuses too few modules for paths whose snapshots are sent now and then."""
        keep = self.retention
        if self.outer.path_share < 1 < keep.send_snapshots_every and keep.modules is not None:
            raise SettingsDisagree(
                problem=f"`retention.send_snapshots_every` is {keep.send_snapshots_every}, and "
                f"`retention.modules` {keep.modules}: with `outer.path_share` below 1 many phases "
                "may lie between two of a path's, which it may have to train again from the "
                "modules of then; expected None for all"
            )

    def _check_paths(self) -> None:
        """Checks settings that count paths and phases against the topology and `phases`."""
        routing, num_paths = self.routing, self.num_paths
        if routing.overlap > num_paths:
            raise SettingsDisagree(
                problem=f"`routing.overlap` is {routing.overlap}, and there are {num_paths} paths"
            )
        if routing.shortlist is not None and routing.shortlist > num_paths:
            raise SettingsDisagree(
                problem=f"`routing.shortlist` is {routing.shortlist}, and there are {num_paths} "
                "paths; None compares them all"
            )
        if routing.rule == LIKELIHOOD and routing.alternations:
            if routing.shortlist is not None and routing.overlap > routing.shortlist:
                raise SettingsDisagree(
                    problem=f"`routing.overlap` is {routing.overlap}, and `routing.shortlist` "
                    f"{routing.shortlist}: documents train paths of their shortlists"
                )
            if routing.target_share is not None:
                raise SettingsDisagree(
                    problem="`routing.target_share` is set, and `routing.rule` is likelihood: it "
                    "is what the discriminative router keeps to; use `routing.capacity` and "
                    "`routing.floor`"
                )
        if any(phase > self.phases for phase in routing.alternations):
            raise SettingsDisagree(
                problem=f"`routing.alternations` are {routing.alternations}, and there are "
                f"{self.phases} phases"
            )
        if routing.alternations and num_paths == 1:
            raise SettingsDisagree(
                problem="`routing.alternations` are set, and the topology has one path: there is "
                "nothing to route"
            )
        if self.reroute.every and (num_paths == 1 or not self.evaluation.best_path):
            raise SettingsDisagree(
                problem="`reroute.every` needs more than one path, and every document scored under "
                "all of them: `evaluation.best_path=true`"
            )
        share = routing.target_share
        if share is not None and not routing.alternations:
            raise SettingsDisagree(
                problem="`routing.target_share` is set, and `routing.alternations` are not: it is "
                "what the discriminative router keeps to"
            )
        if share is not None and len(share) != num_paths:
            raise SettingsDisagree(
                problem=f"`routing.target_share` has {len(share)} shares, and there are "
                f"{num_paths} paths"
            )

    @property
    def num_paths(self) -> int:
        return self.topology.num_paths

    @property
    def counts_tokens(self) -> bool:
        """Whether training asks how often each token occurs in each shard."""
        by_holders = self.outer.vocabulary_rows == "holders"
        return by_holders or self.inner.absent_tokens != "plain"

    @functools.cached_property
    def plan(self) -> Plan:
        """The arms of the run: base model, modular model, baselines.

        The dense baselines take the same inner steps as a path, or as all paths together, or are
        trained by as many machines as paths train in a phase, which average gradients at every
        step; they are plain AdamW, no outer step.
        """
        dense = one_path(part_names(self.model))
        every = self.evaluation.every_phases
        base_paths = self.base.paths if self.base.steps else 1
        base_steps = -(-self.base.steps // base_paths)
        base_phases = max(1, -(-base_steps // self.base.steps_per_phase))

        def plain(name: str, phases: int, evaluate_every: int) -> Arm:
            return Arm(
                name=name,
                topology=dense,
                phases=phases,
                total_steps=phases * self.inner.steps,
                is_averaged=False,
                evaluate_every=evaluate_every,
            )

        base = Arm(
            name=BASE,
            topology=dense if base_paths == 1 else one_model(part_names(self.model), base_paths),
            phases=base_phases,
            total_steps=base_steps,
            is_averaged=base_paths > 1,
            is_dealt=base_paths > 1,
            evaluate_every=base_phases,
        )
        modular = Arm(
            name=MODULAR,
            topology=self.topology,
            phases=self.phases,
            total_steps=self.phases * self.inner.steps,
            is_averaged=not self.outer.synchronous,
            is_synchronous=self.outer.synchronous,
            evaluate_every=every,
            alternations=self.routing.alternations,
            sampling=self.outer.path_share,
            quorum=self.outer.quorum,
            grace_seconds=self.outer.grace_seconds,
            delay=0 if self.outer.synchronous else self.outer.delay,
            adaptive_grace=AdaptiveGrace(self.outer.grace_deviations, self.outer.grace_margin)
            if self.outer.grace == "adaptive"
            else None,
            is_staggered=self.outer.stagger and not self.outer.synchronous,
            seed=self.seed,
            least_steps_share=self.inner.least_steps_share,
            stops_early=self.inner.hold_out > 0,
        )
        path_phases = sum(len(modular.paths_in(phase)) for phase in range(self.phases))
        dense_arms = {
            DENSE: plain(DENSE, self.phases, every),
            DATA_PARALLEL: Arm(
                name=DATA_PARALLEL,
                topology=one_model(part_names(self.model), len(modular.paths_in(0))),
                phases=self.phases,
                total_steps=self.phases * self.inner.steps,
                is_averaged=False,
                is_synchronous=True,
                is_dealt=True,
                evaluate_every=every,
            ),
            DENSE_EQUAL_TOKENS: plain(
                DENSE_EQUAL_TOKENS, path_phases, every * max(1, path_phases // self.phases)
            ),
        }
        arms = (modular, *(dense_arms[name] for name in self.baselines))
        needs_features = self.num_paths > 1 and self.routing.kind not in ("random", SMALL_MODELS)
        return Plan(
            base=base,
            arms=arms,
            samples=self.samples.prompts > 0,
            slices=self.data.slices,
            feature_slices=self.data.slices if needs_features else 1,
            reroutes=bool(self.reroute.every),
        )

    def to_json(self) -> str:
        """One line per setting, in a fixed order."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise BadSetting(name=name, value=value, expected=f"{least} or more")


def _agree(name: str, value: object, other_name: str, other: object) -> None:
    if value != other:
        raise SettingsDisagree(
            problem=f"`{name}` is {value} and `{other_name}` is {other}; they must be equal"
        )
