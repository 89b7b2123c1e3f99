"""Counts a peer's traffic, measures the speed of its link, and limits its use."""

import asyncio
import time

from dipaco.swarm.planning.progress import Rate

MEASURED_BYTES = 64 << 10  # smaller transfers do not measure a link


class LinkMeter:
    """Counts and times the bytes that are moved, and limits their rate.

    Args:
      max_bytes_per_second: limit in each direction; None = no limit.
    """

    def __init__(self, max_bytes_per_second: float | None = None):
        self.bytes_up = self.bytes_down = 0
        self.up = self.down = Rate()
        self._max = max_bytes_per_second
        self._free_at = {"up": 0.0, "down": 0.0}

    def charge(self, direction: str, num_bytes: int) -> None:
        """Counts bytes that go at once, as polls must. Payloads wait until they would have gone."""
        if direction == "up":
            self.bytes_up += num_bytes
        else:
            self.bytes_down += num_bytes
        if self._max is not None:
            free_at = max(time.monotonic(), self._free_at[direction])
            self._free_at[direction] = free_at + num_bytes / self._max

    async def wait(self, direction: str, num_bytes: int) -> None:
        """Waits until that many more bytes of a payload may go."""
        self.charge(direction, num_bytes)
        if (seconds := self._free_at[direction] - time.monotonic()) > 0:
            await asyncio.sleep(seconds)

    def seconds(self, direction: str, num_bytes: int) -> float:
        """Time for so many bytes at the measured speed, or at the limit; 0 if neither is known."""
        measured = self.up if direction == "up" else self.down
        speed = measured.per_second or self._max
        return num_bytes / speed if speed else 0.0

    def sent(self, num_bytes: int, seconds: float) -> None:
        if num_bytes > MEASURED_BYTES:
            self.up = self.up.after(num_bytes, seconds)

    def received(self, num_bytes: int, seconds: float) -> None:
        if num_bytes > MEASURED_BYTES:
            self.down = self.down.after(num_bytes, seconds)
