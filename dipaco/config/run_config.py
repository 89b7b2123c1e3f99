"""`RunConfig`: the settings of all rooms, and the plan of the run."""

import dataclasses
import functools
import json

from dipaco.config.arms import BASELINES, DENSE, Baseline, plan_of
from dipaco.config.checks import check
from dipaco.config.sections import BaseSettings, EvaluationSettings, ReportSettings
from dipaco.data.config import CorpusConfig, DataConfig
from dipaco.data.prompts import SampleSettings
from dipaco.errors import BadSetting
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MeshConfig, ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RerouteConfig, RoutingConfig
from dipaco.schedule.plan import Plan
from dipaco.settings import Count, check_values
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Topology

OF_NO_RESULT = ("retention", "report")  # settings that change nothing that is trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that the result of a run depends on. Two runs of equal configs on machines of one
    kind are equal bit for bit, except with `outer.quorum`, where
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
    phases: Count
    """Phases of the run, each of which ends with an outer step (DiPaCo's T)."""
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
        check(self)

    @property
    def num_paths(self) -> int:
        return self.topology.num_paths

    @property
    def corpus(self) -> CorpusConfig:
        """What the corpus is made by."""
        return CorpusConfig(**vars(self.data), vocab_size=self.model.vocab_size)

    @property
    def counts_tokens(self) -> bool:
        """Whether training asks how often each token occurs in each shard."""
        return self.outer.vocabulary_rows == "holders" or self.inner.freeze_absent_tokens

    @functools.cached_property
    def plan(self) -> Plan:
        """The arms of the run: base model, modular model, baselines."""
        return plan_of(self)

    def has_results_of(self, other: "RunConfig") -> bool:
        """Whether it trains what another does: all but what is kept and what the report reckons
        with is equal.
        """
        kept = {name: getattr(other, name) for name in OF_NO_RESULT}
        return dataclasses.replace(self, **kept) == other

    def to_json(self) -> str:
        """One line per setting, in a fixed order."""
        return json.dumps(dataclasses.asdict(self), indent=1)
