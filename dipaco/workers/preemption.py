"""What a task raises when it is asked to stop before its end."""

from dipaco.control.facts.facts import PartialSnapshot


class Preempted(Exception):
    """A task stopped before its end, and what it had done is saved."""

    def __init__(self, partial_snapshot: PartialSnapshot):
        self.partial_snapshot = partial_snapshot
