"""When a machine is lent to a swarm: in some hours, and while it has mains power."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from dipaco.errors import BadSetting, needs_extra
from dipaco.swarm.errors import SwarmUnreachable

AGAIN_SECONDS = 600.0  # before a swarm that did not answer is asked again
LOOK_SECONDS = 15.0  # between two looks at clock and power: a machine may have been asleep
DAY_MINUTES = 24 * 60
HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")


class LendingRule(Protocol):
    """When a machine is lent."""

    def holds(self, now: datetime) -> bool:
        """Whether it is lent now."""
        ...

    @property
    def beginning(self) -> str:
        """After *until*: what is waited for."""
        ...

    @property
    def ending(self) -> str:
        """A sentence: why the machine leaves."""
        ...


class Hours(NamedTuple):
    """Hours of every day, by the clock of this machine; over midnight where they end before they
    begin.
    """

    begin: int  # minute of the day
    end: int

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """As in `22:00-07:00`; they may end at 24:00. Raises `BadSetting`."""
        found = HOURS.fullmatch(text.strip())
        numbers = [int(number) for number in found.groups()] if found else [99] * 4
        begin, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        is_time = max(numbers[1::2]) < 60 and begin < DAY_MINUTES and end <= DAY_MINUTES
        if not is_time or begin == end:
            expected = "two different times of the day, as in 22:00-07:00"
            raise BadSetting(name="--between", value=text, expected=expected)
        return cls(begin, end)

    def holds(self, now: datetime) -> bool:
        minute = now.hour * 60 + now.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    @property
    def beginning(self) -> str:
        return f"{self.begin // 60:02d}:{self.begin % 60:02d}"

    @property
    def ending(self) -> str:
        return "its hours are over: leaving until the next day"


class PluggedIn:
    """While the machine has mains power. One without a battery has, and so has one that does not
    say. Raises `ExtraMissing`.
    """

    def __init__(self) -> None:
        with needs_extra("volunteer", package="psutil", feature="`--plugged-in`"):
            import psutil
        self._psutil = psutil

    def holds(self, now: datetime) -> bool:
        read = getattr(self._psutil, "sensors_battery", lambda: None)  # not on every system
        battery = read()
        return battery is None or battery.power_plugged is not False

    @property
    def beginning(self) -> str:
        return "it is plugged in"

    @property
    def ending(self) -> str:
        return "it runs on its battery: leaving until it is plugged in"


async def while_lent(
    rules: Sequence[LendingRule],
    session: Callable[[asyncio.Event], Awaitable[None]],
    stop: asyncio.Event,
    say: Callable[[str], None],
    now: Callable[[], datetime] = datetime.now,
    *,
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Takes part, in a session whenever all rules hold, until one ends by itself or `stop` is set.
    After one that ends since no backbone answers, it tries again later.

    Args:
      rules: when the machine is lent.
      session: takes part until the run is over, or its event is set.
      stop: ends the session, and then this.
      say: prints a sentence.
      now: the clock on the wall.
      check: is asked once where the first session has to wait, so that an error is known at once
        and not as its hours begin.
    """

    def broken() -> LendingRule | None:
        at = now()
        return next((rule for rule in rules if not rule.holds(at)), None)

    if check is not None and broken() is not None:
        await check()
    while not stop.is_set():
        while (rule := broken()) is not None:
            say(f"waiting until {rule.beginning}; Ctrl-C leaves")
            while not rule.holds(now()):
                if await _is_set(stop, LOOK_SECONDS):
                    return
        leave = asyncio.Event()
        running = asyncio.ensure_future(session(leave))
        while not running.done():
            looking = asyncio.ensure_future(_is_set(stop, LOOK_SECONDS))
            await asyncio.wait([running, looking], return_when=asyncio.FIRST_COMPLETED)
            looking.cancel()
            if not leave.is_set() and not stop.is_set() and (rule := broken()) is not None:
                say(rule.ending)
                leave.set()
            if stop.is_set():
                leave.set()
                await asyncio.wait([running])
        try:
            await running
        except SwarmUnreachable as error:
            minutes = AGAIN_SECONDS / 60
            say(f"{error} Trying again in {minutes:.0f} minutes, or when it is lent again")
            await _is_set(stop, AGAIN_SECONDS)
            continue
        if not leave.is_set():
            return  # the run is over


async def _is_set(event: asyncio.Event, within_seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), within_seconds)
    except TimeoutError:
        return False
    return True
