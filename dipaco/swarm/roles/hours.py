"""The hours in which a machine is lent to a swarm."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from dipaco.errors import BadSetting
from dipaco.swarm.errors import SwarmUnreachable

AGAIN_SECONDS = 600.0  # before a swarm that did not answer is asked again
LOOK_SECONDS = 15.0  # between two looks at the clock on the wall: a machine may have been asleep
DAY_MINUTES = 24 * 60
HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")


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

    def hold(self, now: datetime) -> bool:
        """Whether the machine is lent now."""
        minute = now.hour * 60 + now.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    @property
    def opening(self) -> str:
        """When they begin."""
        return f"{self.begin // 60:02d}:{self.begin % 60:02d}"


async def within_hours(
    hours: Hours,
    session: Callable[[asyncio.Event], Awaitable[None]],
    stop: asyncio.Event,
    say: Callable[[str], None],
    now: Callable[[], datetime] = datetime.now,
) -> None:
    """Takes part in a session a day, until one ends by itself or `stop` is set. After one that ends
    since no backbone answers, it tries again later.

    Args:
      hours: between which.
      session: takes part until the run is over, or its event is set.
      stop: ends the session, and then this.
      say: prints a sentence.
      now: the clock on the wall.
    """
    while not stop.is_set():
        if not hours.hold(now()):
            say(f"waiting until {hours.opening}; Ctrl-C leaves")
            while not hours.hold(now()):
                if await _is_set(stop, LOOK_SECONDS):
                    return
        leave = asyncio.Event()
        running = asyncio.ensure_future(session(leave))
        while not running.done():
            looking = asyncio.ensure_future(_is_set(stop, LOOK_SECONDS))
            await asyncio.wait([running, looking], return_when=asyncio.FIRST_COMPLETED)
            looking.cancel()
            if not leave.is_set() and not stop.is_set() and not hours.hold(now()):
                say("its hours are over: leaving until the next day")
                leave.set()
            if stop.is_set():
                leave.set()
                await asyncio.wait([running])
        try:
            await running
        except SwarmUnreachable as error:
            minutes = AGAIN_SECONDS / 60
            say(f"{error} Trying again in {minutes:.0f} minutes, or when its hours begin")
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
