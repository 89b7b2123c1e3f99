"""Messages of a run for terminals and trackers."""

from collections.abc import Callable, Sequence

from dipaco.control.ledger import Ledger
from dipaco.observe.events import Event
from dipaco.observe.trackers import TrackedRun, Trackers
from dipaco.runs.run import Run


def terminal_line(event: Event, ledger: Ledger) -> str:
    """An event as a line for a terminal. The line of the task without which the run cannot go on
    has no reason, since the error that the command ends with says it. Files have it in the event.
    """
    if event.name == "task_given_up":
        stuck = ledger.failures.stuck()
        if stuck and str(stuck[0].task) == event.fields["task"]:
            return f"{event.level}: {event.fields['task']} has failed, and the run cannot go on"
    return event.line


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
