"""The plan of a run, as its config says it: base model, modular model, baselines."""

from typing import TYPE_CHECKING, Literal, get_args

from dipaco.model.config import part_names
from dipaco.routing.config import RANDOM, SMALL_MODELS
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import BASE, Plan, one_model, one_path

if TYPE_CHECKING:
    from dipaco.config.run_config import RunConfig

MODULAR = "modular"
Baseline = Literal["dense", "data_parallel", "dense_equal_tokens"]
DENSE, DATA_PARALLEL, DENSE_EQUAL_TOKENS = BASELINES = get_args(Baseline)


def plan_of(config: "RunConfig") -> Plan:
    """The arms of the run: base model, modular model, baselines.

    The dense baselines take the same inner steps as a path, or as all paths together, or are
    trained by as many machines as paths train in a phase, which average gradients at every
    step; they are plain AdamW, no outer step.
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
            is_averaged=False,
            evaluate_every=evaluate_every,
        )

    base = Arm(
        name=BASE,
        topology=dense,
        phases=base_phases,
        total_steps=config.base.steps,
        is_averaged=False,
        evaluate_every=base_phases,
    )
    modular = Arm(
        name=MODULAR,
        topology=config.topology,
        phases=config.phases,
        total_steps=config.phases * config.inner.steps,
        is_averaged=not config.outer.synchronous,
        is_synchronous=config.outer.synchronous,
        evaluate_every=every,
        alternations=config.routing.alternations,
        path_share=config.outer.path_share,
        quorum=config.outer.quorum,
        grace_seconds=config.outer.grace_seconds,
        delay=0 if config.outer.synchronous else config.outer.delay,
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
            is_averaged=False,
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
