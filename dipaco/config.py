"""`RunConfig`: the settings of all rooms, the checks across them, and the plan of the run.

A config is a Python file with a function `run() -> RunConfig`; a variant is a small edit of another
(`dataclasses.replace`). No JAX here, so that `dipaco config show` and a wrong `--set` answer
immediately.
"""

import dataclasses
import functools
import json
import math

from dipaco.control.plan import BASE, Arm, Plan, one_path
from dipaco.data.config import DataConfig
from dipaco.errors import BadSetting, SettingsDisagree
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MeshConfig, ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RerouteConfig, RoutingConfig
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Topology

MODULAR = "modular"
DENSE = "dense"
DENSE_EQUAL_TOKENS = "dense_equal_tokens"
BASELINES = (DENSE, DENSE_EQUAL_TOKENS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """The dense model that all modules start from, and that the router's features come from."""

    steps: int = 24_000  # DiPaCo section 4; 0 = start from scratch, with features of a random model
    steps_per_phase: int = 1000  # saved after every so many steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How releases are evaluated."""

    every_phases: int = 1  # the last phase is always evaluated
    max_documents: int | None = None  # of the validation split; None = all
    batch_size: int = 64  # documents scored at once; changes results by rounding only
    best_path: bool = True  # the last release is scored under every path, for the oracle row


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that the result of a run depends on. Two runs of equal configs on machines of one
    kind are equal bit for bit, except with `outer.quorum`, where timing matters.
    """

    name: str
    model: ModelConfig
    topology: Topology
    phases: int  # T, outer steps
    seed: int = 0  # of parameters, row order and k-means; not of the corpus
    data: DataConfig = DataConfig()
    base: BaseSettings = BaseSettings()
    routing: RoutingConfig = RoutingConfig()
    inner: InnerSettings = InnerSettings()
    outer: OuterSettings = OuterSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    reroute: RerouteConfig = RerouteConfig()
    mesh: MeshConfig = MeshConfig()
    retention: RetentionSettings = RetentionSettings()
    baselines: tuple[str, ...] = BASELINES  # dense arms to train beside the modular one

    def __post_init__(self):
        self.topology.check_owns(part_names(self.model))
        _at_least("phases", self.phases, 1)
        if not 0 <= self.seed < 2**63:
            raise BadSetting(name="seed", value=self.seed, expected="0 to 2^63 - 1")
        _at_least("base.steps", self.base.steps, 0)
        _at_least("base.steps_per_phase", self.base.steps_per_phase, 1)
        _at_least("evaluation.every_phases", self.evaluation.every_phases, 1)
        _at_least("evaluation.batch_size", self.evaluation.batch_size, 1)
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
        self._check_paths()
        self._check_synchronous()
        if self.routing.kind == "product_kmeans" and not self.topology.choices:
            raise SettingsDisagree(
                problem="`routing.kind` is product_kmeans, but the topology offers no choice: use"
                " kmeans"
            )

    def _check_synchronous(self) -> None:
        """Refuses settings of contributions, or of single paths, beside `outer.synchronous`."""
        without_meaning = {
            "outer.path_share": self.outer.path_share != 1,
            "outer.codec": self.outer.codec != "none",
            "outer.quorum": self.outer.quorum != 1,
            "outer.vocabulary_rows": self.outer.vocabulary_rows != "documents",
            "routing.alternations": bool(self.routing.alternations),
            "inner.hold_out": self.inner.hold_out > 0,
        }
        for name, is_set in without_meaning.items():
            if self.outer.synchronous and is_set:
                raise SettingsDisagree(
                    problem=f"`outer.synchronous` is on, and so is `{name}`; paths that step "
                    "together do without it"
                )

    def _check_paths(self) -> None:
        """Checks settings that count paths and phases against the topology and `phases`."""
        routing, num_paths = self.routing, self.num_paths
        if routing.overlap > num_paths:
            raise SettingsDisagree(
                problem=f"`routing.overlap` is {routing.overlap}, and there are {num_paths} paths"
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

    @functools.cached_property
    def plan(self) -> Plan:
        """The arms of the run: base model, modular model, baselines.

        The dense baselines take the same inner steps as a path, or as all paths together; they are
        plain AdamW, no outer step.
        """
        dense = one_path(part_names(self.model))
        every = self.evaluation.every_phases
        base_phases = max(1, math.ceil(self.base.steps / self.base.steps_per_phase))

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
            topology=dense,
            phases=base_phases,
            total_steps=self.base.steps,
            is_averaged=False,
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
            seed=self.seed,
            stops_early=self.inner.hold_out > 0,
        )
        path_phases = sum(len(modular.paths_in(phase)) for phase in range(self.phases))
        dense_arms = {
            DENSE: plain(DENSE, self.phases, every),
            DENSE_EQUAL_TOKENS: plain(
                DENSE_EQUAL_TOKENS, path_phases, every * max(1, path_phases // self.phases)
            ),
        }
        arms = (modular, *(dense_arms[name] for name in self.baselines))
        return Plan(base=base, arms=arms, reroutes=bool(self.reroute.every))

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
