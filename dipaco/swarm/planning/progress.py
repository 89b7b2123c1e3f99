"""A peer's rate of work, averaged over what was measured."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Rate:
    """An exponential moving average of amounts per second. It is unbiased from the first
    measurement on, like Adam's moments.
    """

    weight: float = 0.0  # weight of the measurements, in [0, 1)
    seconds_per_unit: float = 0.0

    def after(self, amount: float, seconds: float, alpha: float = 0.1) -> "Rate":
        """Adds one measurement. Seconds per unit are averaged, so that stalls count as long as they
        took.
        """
        if amount <= 0:
            return self
        measured = seconds / amount
        return Rate(
            self.weight + alpha * (1.0 - self.weight),
            self.seconds_per_unit + alpha * (measured - self.seconds_per_unit),
        )

    @property
    def per_second(self) -> float:
        """Zero before anything was measured."""
        return self.weight / self.seconds_per_unit if self.seconds_per_unit > 0 else 0.0
