"""`RunConfig`: the settings of all rooms, the checks between them, and the plan of the run."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import Literal, get_args

from dipaco.config.sections import BaseSettings, EvaluationSettings, ReportSettings
from dipaco.data.config import CorpusConfig, DataConfig
from dipaco.data.prompts import SampleSettings
from dipaco.errors import BadSetting, SettingsDisagree
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MESH_AXES, MeshConfig, ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import LIKELIHOOD, RANDOM, SMALL_MODELS, RerouteConfig, RoutingConfig
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import BASE, Plan, one_model, one_path
from dipaco.settings import Count, check_values
from dipaco.store.retention import RetentionSettings
from dipaco.topology import SHARED, Topology

MODULAR = "modular"
Baseline = Literal["dense", "data_parallel", "dense_equal_tokens"]
DENSE, DATA_PARALLEL, DENSE_EQUAL_TOKENS = BASELINES = get_args(Baseline)
LEAST_VOCABULARY = 257
OF_NO_RESULT = ("retention", "report")  # settings that change nothing that is trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that the result of a run depends on. Two runs of equal configs on machines of one
    kind are equal bit for bit, except with `outer.quorum`: there timing matters.
    """

    name: str
    """The run's name, and that of the model that is served."""
    model: ModelConfig
    topology: Topology
    """What is shared: levels of the model's parts, and the modules of each (DiPaCo section 2.3).
    `--set topology=2x3` makes a grid: two levels, of 2 and of 3 modules, over which the model's
    blocks are spread in order, the embedding with the first level, final norm and head with the
    last. Other patterns are written in a config file."""
    phases: Count
    """Phases of the run. In the modular arm each ends with an outer step (DiPaCo's T),
    unless `outer.synchronous`."""
    seed: int = 0
    """Number that parameters, row order and k-means are drawn from; the corpus does not depend on
    it."""
    data: DataConfig = DataConfig()
    base: BaseSettings = BaseSettings()
    routing: RoutingConfig = RoutingConfig()
    inner: InnerSettings = InnerSettings()
    outer: OuterSettings = OuterSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    samples: SampleSettings = SampleSettings()
    reroute: RerouteConfig = RerouteConfig()
    mesh: MeshConfig = MeshConfig()
    retention: RetentionSettings = RetentionSettings()
    report: ReportSettings = ReportSettings()
    baselines: tuple[Baseline, ...] = BASELINES
    """Dense models of a path's size that are trained beside the modular one, from the same base
    model: `dense` takes the steps of one path, `dense_equal_tokens` those of all paths together,
    `data_parallel` is trained in lock-step by as many machines as paths take part in a phase. `()`
    = none."""

    def __post_init__(self):
        self.topology.check_owns(part_names(self.model))
        check_values(self)
        if not self.name.strip() or not self.name.isprintable():
            raise BadSetting(name="name", value=self.name, expected="text that can be printed")
        if not 0 <= self.seed < 2**63:
            raise BadSetting(name="seed", value=self.seed, expected="0 to 2^63 - 1")
        if isinstance(self.baselines, str):
            expected = f'a tuple, as in ("{DENSE}",)'
            raise BadSetting(name="baselines", value=self.baselines, expected=expected)
        if unknown := set(self.baselines) - set(BASELINES):
            raise BadSetting(
                name="baselines",
                value=sorted(unknown)[0],
                expected=f"any of {', '.join(BASELINES)}",
            )
        _check(self)

    @property
    def num_paths(self) -> int:
        return self.topology.num_paths

    @property
    def shares_all(self) -> bool:
        """True if the paths share all parts."""
        return all(level.experts == SHARED for level in self.topology.levels if level.parts)

    @property
    def is_one_model(self) -> bool:
        """True if all paths have the same parameters. With early stopping they have not: each is
        released as of its best phase.
        """
        return self.num_paths == 1 or (self.shares_all and not self.inner.hold_out)

    @property
    def corpus(self) -> CorpusConfig:
        """The settings that the corpus is made by."""
        return CorpusConfig(**vars(self.data), vocab_size=self.model.vocab_size)

    @property
    def counts_tokens(self) -> bool:
        """True if training asks how often each token occurs in each shard."""
        return self.outer.vocabulary_rows == "holders" or self.inner.freeze_absent_tokens

    @functools.cached_property
    def plan(self) -> Plan:
        """The arms of the run: base model, modular model, baselines."""
        return _plan_of(self)

    def has_results_of(self, other: "RunConfig") -> bool:
        """True if both configs train the same result. Ignores `retention` and `report`."""
        kept = {name: getattr(other, name) for name in OF_NO_RESULT}
        return dataclasses.replace(self, **kept) == other

    def to_json(self) -> str:
        """One line per setting, in a fixed order."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def _plan_of(config: RunConfig) -> Plan:
    """The arms of the run: base model, modular model, baselines.

    The dense baselines take the same inner steps as a path, or as all paths together, or are
    trained by as many machines as paths train in a phase, which average gradients at every step.
    They take no outer step.
    """
    dense = one_path(part_names(config.model))
    every = config.evaluation.every_phases
    base_phases = max(1, -(-config.base.steps // config.base.steps_per_phase))

    def plain(name: str, phases: int, evaluate_every: int) -> Arm:
        return Arm(
            name=name,
            topology=dense,
            phases=phases,
            total_steps=phases * config.inner.steps,
            has_outer_steps=False,
            evaluate_every=evaluate_every,
        )

    base = Arm(
        name=BASE,
        topology=dense,
        phases=base_phases,
        total_steps=config.base.steps,
        has_outer_steps=False,
        evaluate_every=base_phases,
    )
    modular = Arm(
        name=MODULAR,
        topology=config.topology,
        phases=config.phases,
        total_steps=config.phases * config.inner.steps,
        has_outer_steps=not config.outer.synchronous,
        is_synchronous=config.outer.synchronous,
        evaluate_every=every,
        alternations=config.routing.alternations,
        path_share=config.outer.path_share,
        quorum=config.outer.quorum,
        grace_seconds=config.outer.grace_seconds,
        delay=config.outer.delay,
        seed=config.seed,
        hold_out=config.inner.hold_out,
    )
    path_phases = config.phases * modular.num_at_once
    dense_arms = {
        DENSE: plain(DENSE, config.phases, every),
        DATA_PARALLEL: Arm(
            name=DATA_PARALLEL,
            topology=one_model(part_names(config.model), modular.num_at_once),
            phases=config.phases,
            total_steps=config.phases * config.inner.steps,
            has_outer_steps=False,
            is_synchronous=True,
            is_dealt=True,
            evaluate_every=every,
        ),
        DENSE_EQUAL_TOKENS: plain(DENSE_EQUAL_TOKENS, path_phases, every * modular.num_at_once),
    }
    arms = (modular, *(dense_arms[name] for name in config.baselines))
    needs_features = config.num_paths > 1 and config.routing.kind not in (RANDOM, SMALL_MODELS)
    return Plan(
        base=base,
        arms=arms,
        samples=config.samples.prompts > 0,
        slices=config.data.slices,
        feature_slices=config.data.slices if needs_features else 0,
        reroutes=bool(config.reroute.every),
    )


def _check(config: RunConfig) -> None:
    """Raises `SettingsDisagree` for settings of rooms that do not fit each other."""
    if config.model.vocab_size < LEAST_VOCABULARY:
        raise BadSetting(
            name="model.vocab_size",
            value=config.model.vocab_size,
            expected=f"{LEAST_VOCABULARY} or more (256 bytes and one reserved id)",
        )
    if not config.data.prefix_tokens < config.data.length <= config.model.max_length:
        raise SettingsDisagree(
            problem=f"`data.length` is {config.data.length}; it must be above "
            f"`data.prefix_tokens` ({config.data.prefix_tokens}) and at most "
            f"`model.max_length` ({config.model.max_length})"
        )
    if config.data.length % config.inner.loss_chunks:
        raise SettingsDisagree(
            problem=f"`inner.loss_chunks` is {config.inner.loss_chunks}, and rows of "
            f"`data.length` ({config.data.length}) tokens cannot be cut into that many equal "
            "lengths"
        )
    for arm in (config.plan.base, *config.plan.arms):
        if 0 < arm.total_steps <= config.inner.warmup_steps:
            raise SettingsDisagree(
                problem=f"`inner.warmup_steps` is {config.inner.warmup_steps}, and "
                f"`{arm.name}` takes only {arm.total_steps} steps: warm up for fewer, or "
                "train longer"
            )
    room = config.model.max_length - config.data.prefix_tokens
    if config.samples.prompts and config.samples.tokens > room:
        raise SettingsDisagree(
            problem=f"`samples.tokens` is {config.samples.tokens}, and after a prompt of "
            f"`data.prefix_tokens` the context of `model.max_length` has room for {room}"
        )
    if (num_devices := config.mesh.num_devices) is not None:
        check_mesh(config, dict(zip(MESH_AXES, config.mesh.shape(num_devices), strict=True)))
    _check_kernel(config)
    _check_paths(config)
    _check_synchronous(config)
    _check_delay(config)
    if config.routing.kind in ("product_kmeans", SMALL_MODELS) and not config.topology.choices:
        raise SettingsDisagree(
            problem=f"`routing.kind` is {config.routing.kind}, but the topology offers no choice:"
            " use kmeans"
        )


def check_effects(config: RunConfig) -> None:
    """For a run that is to begin: raises `BadSetting` for a setting that would have no effect. One
    that was recorded with it is opened as before.
    """
    data = config.data
    if not data.end_of_text:
        for name in ("end_token", "start_token"):
            if value := getattr(data, name):
                expected = "None beside `data.end_of_text=false`: texts have no such token then"
                raise BadSetting(name=f"data.{name}", value=value, expected=expected)


def check_mesh(config: RunConfig, sizes: Mapping[str, int]) -> None:
    """Raises `SettingsDisagree` for batches that a mesh cannot divide.

    Args:
      sizes: devices along each axis of its mesh.
    """
    inner = config.inner
    rows = inner.batch_size // inner.accumulation_steps
    pieces = math.prod(sizes[axis] for axis in config.mesh.rules.batch)
    if rows % pieces:
        raise SettingsDisagree(
            problem=f"{rows} rows (`inner.batch_size` / `inner.accumulation_steps`) cannot be "
            f"divided among the {pieces} devices of the mesh that share a batch"
        )


def _check_kernel(config: RunConfig) -> None:
    """cuDNN's attention takes masks of even rows (`attend_fused`)."""
    if config.model.attention_kernel == "cudnn" and config.data.length % 2:
        raise SettingsDisagree(
            problem=f"`model.attention_kernel` is cudnn, which takes rows of an even length, and "
            f"`data.length` is {config.data.length}; auto takes the plain kernel"
        )


def _check_synchronous(config: RunConfig) -> None:
    """Refuses settings of contributions, or of single paths, beside `outer.synchronous`."""
    without_meaning = {
        "outer.path_share": config.outer.path_share != 1,
        "outer.codec": config.outer.codec != "none",
        "outer.quorum": config.outer.quorum != 1,
        "outer.vocabulary_rows": config.outer.vocabulary_rows != "documents",
        "outer.delay": config.outer.delay > 0,
        "routing.alternations": bool(config.routing.alternations),
        "inner.hold_out": config.inner.hold_out > 0,
        "inner.freeze_absent_tokens": config.inner.freeze_absent_tokens,
    }
    for name, is_set in without_meaning.items():
        if config.outer.synchronous and is_set:
            raise SettingsDisagree(
                problem=f"`outer.synchronous` is on, and so is `{name}`; paths that step "
                "together do without it"
            )


def _check_delay(config: RunConfig) -> None:
    """A path takes late modules inside a phase, by itself."""
    delay, steps = config.outer.delay, config.inner.steps
    if delay >= steps:
        raise SettingsDisagree(
            problem=f"`outer.delay` is {delay}, and a phase has `inner.steps` ({steps}) steps: "
            "modules are taken within it, so delay fewer"
        )


def _check_paths(config: RunConfig) -> None:
    """Checks settings that count paths and phases against the topology and `phases`."""
    routing, num_paths = config.routing, config.num_paths
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
        if routing.shortlist is not None:
            raise SettingsDisagree(
                problem=f"`routing.shortlist` is {routing.shortlist}, and an alternation by "
                "likelihood compares all paths: leave it out"
            )
        if routing.target_share is not None:
            raise SettingsDisagree(
                problem="`routing.target_share` is set, and `routing.rule` is likelihood: it "
                "is what the discriminative router keeps to; use `routing.capacity` and "
                "`routing.floor`"
            )
    if any(phase > config.phases for phase in routing.alternations):
        raise SettingsDisagree(
            problem=f"`routing.alternations` are {routing.alternations}, and there are "
            f"{config.phases} phases"
        )
    if routing.alternations and config.is_one_model:
        raise SettingsDisagree(
            problem="`routing.alternations` are set, and all paths are one model: each document "
            "is as likely under every path, so there is nothing to route it by"
        )
    if config.reroute.every and (num_paths == 1 or not config.evaluation.best_path):
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
