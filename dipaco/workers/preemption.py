"""What a task raises when it is asked to stop before its end."""

from dipaco.control.facts import PartialSnapshot


class Preempted(Exception):
    """A task stopped before its end, and what it had done is saved."""

    def __init__(self, *partial_snapshots: PartialSnapshot):
        self.partial_snapshots = partial_snapshots  # one per claim, in their order

    @property
    def partial_snapshot(self) -> PartialSnapshot:
        """The one of a single claim."""
        (partial_snapshot,) = self.partial_snapshots
        return partial_snapshot
