"""Where the reason of a failure is said: in its event, or by the error that a command ends with."""

from dipaco.control.ledger import Ledger
from dipaco.observe.events import Event


def terminal_line(event: Event, ledger: Ledger) -> str:
    """An event as a line for a terminal. Of the task without which the run cannot go on, it has no
    reason: the error that the command ends with says it. Files have it in the event.
    """
    if event.name == "task_given_up":
        stuck = ledger.failures.stuck()
        if stuck and str(stuck[0].task) == event.fields["task"]:
            return f"{event.level}: {event.fields['task']} has failed, and the run cannot go on"
    return event.line
