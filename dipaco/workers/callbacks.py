"""The events of a worker's loop, and who may listen to them: a console, metrics, a test."""

from collections.abc import Callable

from dipaco.control.planning.tasks import Claim, Fact
from dipaco.data.reading import PrepareProgress
from dipaco.errors import DipacoError

OnPathStep = Callable[[float, int], None]  # (loss, tokens) of an inner step that was taken


class Callbacks:
    """One method per event. None of them decides anything, and here none does anything."""

    def compare_machines(self, then: str, now: str) -> None:
        """The run began on a machine `then`, and this process works on `now`."""

    def task_started(self, claim: Claim) -> None: ...

    def prepare_progressed(self, progress: PrepareProgress) -> None: ...

    def step_taken(self, claim: Claim, loss: float, tokens: int) -> None: ...

    def task_finished(self, claim: Claim, facts: list[Fact]) -> None:
        """Its facts are recorded."""

    def claim_lost(self, claim: Claim) -> None:
        """Another worker has the task. Nothing of this attempt counts."""

    def task_released(self, claim: Claim, step: int) -> None:
        """The task stopped after `step` and is saved. The next worker goes on from there."""

    def task_postponed(self, claim: Claim, error: DipacoError) -> None:
        """An input was missing or wrong and is computed again. The task is ready after that."""

    def task_failed(self, claim: Claim, reason: str, *, is_final: bool) -> None:
        """It raised an error. It is tried again later unless `is_final`."""

    def paused(self) -> None:
        """The run is paused, and no task is claimed."""
