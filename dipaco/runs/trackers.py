"""A run as trackers are told of it."""

from collections.abc import Callable, Sequence

from dipaco.observe.trackers import TrackedRun, Trackers
from dipaco.runs.run import Run


def trackers_of(run: Run, names: Sequence[str], say: Callable[[str], object]) -> Trackers:
    """The trackers of these names, opened for a run. Raises as `Trackers`.

    A run that goes on is the same run there.
    """
    config = run.config
    tracked = TrackedRun(
        name=config.name,
        title=f"{config.name} seed {config.seed}",
        identity=run.identity,
        config=config.to_json(),
        folder=run.layout.root,
    )
    return Trackers(names, tracked, run.layout.tensorboard, say)
