"""What tasks record when their bytes are made up: the facts of a run that computes nothing."""

from dipaco.control.planning.tasks import (
    Contribution,
    Evaluated,
    Fact,
    GradientNorms,
    ModuleReady,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    Sample,
    Sampled,
    SliceDone,
    StageDone,
    Task,
)
from dipaco.receipt import Receipt
from dipaco.schedule.plan import Plan
from dipaco.topology import ModuleId


def receipt(*what) -> Receipt:
    """Bytes that are not there; their digest names them."""
    name = "-".join(map(str, what))
    return Receipt(f"objects/{name}", name, 8)


def ready(arm: str, module: ModuleId | str, phase: int) -> ModuleReady:
    module = module if isinstance(module, ModuleId) else ModuleId.parse(module)
    return ModuleReady(
        arm=arm,
        module=module,
        phase=phase,
        parameters=receipt(arm, module, phase),
        outer_state=receipt("state", arm, module, phase) if phase else None,
        gradient_norm=0.5 if phase else None,
    )


def contribution(module: ModuleId | str, phase: int, path: int) -> Contribution:
    module = module if isinstance(module, ModuleId) else ModuleId.parse(module)
    return Contribution(
        arm="modular",
        path=path,
        module=module,
        phase=phase,
        base_digest=ready("modular", module, phase).parameters.digest,
        message=receipt("message", module, phase, path),
    )


def trained(arm: str, path: int, phase: int) -> PathTrained:
    return PathTrained(
        arm=arm,
        path=path,
        phase=phase,
        snapshot=receipt("snapshot", arm, path, phase),
        step=10 * (phase + 1),
        position=10 * (phase + 1),
        batches="rows",
        losses=(2.0 - phase, 1.5 - phase),
        norms=GradientNorms.over([0.25, 0.5 + phase]),
        tokens=100,
        seconds=1.0,
        bytes_down=8,
        bytes_up=8,
        machine="1 x test",
    )


def stage(name, phase=0) -> StageDone:
    artifacts = {f"{name}_made": receipt(name, phase) if phase else receipt(name)}
    return StageDone(
        stage=name, phase=phase, artifacts=artifacts, summary={"documents": 3}, seconds=1.0
    )


def labelled(path: int, phase: int) -> PathLabelled:
    return PathLabelled(
        arm="modular", path=path, phase=phase, scores=receipt("label", path, phase), seconds=1.0
    )


def checked(path: int, phase: int, best: int | None = None) -> PathChecked:
    return PathChecked(
        arm="modular",
        path=path,
        phase=phase,
        loss=5.0 - phase,
        best_phase=phase if best is None else best,
        seconds=1.0,
    )


def scored(arm: str, path: int, phase: int) -> PathScored:
    scores = receipt("scores", arm, path, phase)
    return PathScored(arm=arm, path=path, phase=phase, scores=scores, seconds=1.0)


def evaluated(arm: str, phase: int) -> Evaluated:
    return Evaluated(
        arm=arm,
        phase=phase,
        perplexity=9.5 - phase,
        best_path_perplexity=None,
        documents=3,
        tokens=50,
        seconds=1.0,
    )


def sampled(arm: str, phase: int) -> Sampled:
    """A model that is hardly trained may write any character."""
    samples = (
        Sample("law", 7, 2, "In the ", f"begin\x00ing \ud800 {phase}", 5, has_ended=False),
        Sample("code", 3, 0, "def ", "", 0, has_ended=True),
    )
    return Sampled(arm=arm, phase=phase, samples=samples)


def slice_done(step: str, number: int) -> SliceDone:
    return SliceDone(
        stage="route" if step == "features" else "prepare",
        step=step,
        slice=number,
        artifacts={"texts" if step == "read" else "made": receipt(step, number)},
        summary={"documents": number},
        seconds=1.5,
    )


def facts_of(plan: Plan, task: Task) -> list[Fact]:
    """What finishing `task` records."""
    match task.kind:
        case "prepare" | "route" if task.arm:
            return [slice_done(task.step, task.slice)]
        case "prepare" | "report" | "reroute":
            return [stage(task.kind)]
        case "label":
            return [labelled(task.path, task.phase)]
        case "check":
            return [checked(task.path, task.phase)]
        case "route" if task.phase:
            return [stage("route", task.phase)]
        case "route":
            first = [ready(arm.name, m, 0) for arm in plan.arms for m in arm.topology.modules]
            return [stage("route"), *first]
        case "pretrain" | "train":
            arm, path = plan.arm(task.arm), task.path
            if arm.is_synchronous:  # one task of all paths
                topology = arm.topology
                steps = [ready(arm.name, module, task.phase + 1) for module in topology.modules]
                return [
                    *(trained(arm.name, each, task.phase) for each in range(topology.num_paths)),
                    *steps,
                ]
            modules = arm.topology.modules_of(path)
            if arm.has_outer_steps:
                sent: list[Fact] = [contribution(module, task.phase, path) for module in modules]
            else:
                sent = [ready(arm.name, module, task.phase + 1) for module in modules]
            return [trained(arm.name, path, task.phase), *sent]
        case "outer":
            return [ready(task.arm, task.module, task.phase + 1)]
        case "score":
            return [scored(task.arm, task.path, task.phase)]
        case "evaluate":
            return [evaluated(task.arm, task.phase)]
        case "sample":
            return [sampled(task.arm, task.phase)]
