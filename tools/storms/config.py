"""The config that a storm trains: the toy run with more paths, and wider or longer."""

from collections.abc import Sequence
from pathlib import Path

TOY = Path(__file__).parents[2] / "configs" / "toy.py"
TEXT = '''"""The toy run with K x K paths, wider and longer."""

import dataclasses
from pathlib import Path

from dipaco.overrides import load_config
from dipaco.topology import Topology

TOY = load_config(Path({toy!r}), {settings!r})


def run():
    levels = [dataclasses.replace(level, experts={experts}) for level in TOY.topology.levels]
    return dataclasses.replace(
        TOY,
        name="storm",
        model=dataclasses.replace(TOY.model, d_model={width}, d_ff=3 * {width} // 2),
        topology=Topology(levels=tuple(levels)),
        data=dataclasses.replace(
            TOY.data, sources=("toy:?clusters={paths}&documents={documents}&words=60",)
        ),
        phases={phases},
        inner=dataclasses.replace(TOY.inner, steps={steps}, batch_size=16),
        outer=dataclasses.replace(TOY.outer, quorum={quorum}, grace_seconds={grace_seconds}),
        evaluation=dataclasses.replace(TOY.evaluation, every_phases={every_phases}),
        baselines=(),
    )
'''


def write_config(
    file: Path,
    *,
    experts: int,
    phases: int,
    steps: int,
    width: int = 32,
    documents: int = 100,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    every_phases: int | None = None,
    settings: Sequence[str] = (),
) -> Path:
    """The config file of a run of `experts` x `experts` paths, with so many documents for each.

    Args:
      every_phases: phases between evaluations. None = one evaluation, at the end.
      settings: of the toy run to change, as `--set` has them.
    """
    paths = experts**2
    text = TEXT.format(
        toy=str(TOY), experts=experts, phases=phases, steps=steps, width=width, paths=paths,
        documents=documents * paths, quorum=quorum, grace_seconds=grace_seconds,
        settings=list(settings), every_phases=every_phases or phases,
    )  # fmt: skip
    file.write_text(text)
    return file
