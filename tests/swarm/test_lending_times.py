"""A machine is lent in some hours of the day, and while it is plugged in: sessions begin and end
with these.
"""

import asyncio
import sys
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from dipaco.errors import ExtraMissing
from dipaco.swarm.errors import SwarmRefuses, SwarmUnreachable
from dipaco.swarm.roles import lending_times
from dipaco.swarm.roles.lending_times import Hours, PluggedIn, while_lent
from tests.support.swarm_clock import run

EVENING = datetime(2030, 5, 1, 21, 58)


def test_hours_may_go_over_midnight():
    for text, in_them, out_of_them in (
        ("22:00-07:00", ("22:00", "23:59", "00:00", "06:59"), ("07:00", "12:00", "21:59")),
        ("22:00-24:00", ("22:00", "23:59"), ("00:00", "21:59")),
        ("9:30-17:00", ("09:30", "16:59"), ("09:29", "17:00", "00:00")),
    ):
        for time in (*in_them, *out_of_them):
            holds = Hours.parse(text).holds(datetime.strptime(time, "%H:%M"))
            assert holds == (time in in_them), (text, time)


class Evening:
    """A clock that a minute passes on whenever it is looked at, and by day an hour."""

    def __init__(self):
        self.now = EVENING

    def __call__(self):
        self.now += timedelta(minutes=1 if self.now.hour in (21, 22) else 60)
        return self.now


def lend(monkeypatch, session, text="22:00-22:05", stop_at=None, rules=(), check=None):
    """What was said, and the times of sessions."""
    monkeypatch.setattr(lending_times, "LOOK_SECONDS", 0.001)
    clock, said, times = Evening(), [], []

    async def scenario():
        stop = asyncio.Event()

        async def recorded(leave):
            times.append(("begins", clock.now))
            await session(leave)
            times.append(("ends", clock.now))

        def now():
            if stop_at is not None and clock.now >= stop_at:
                stop.set()
            return clock()

        await asyncio.wait_for(
            while_lent([Hours.parse(text), *rules], recorded, stop, said.append, now, check=check),
            60,
        )

    run(scenario)
    return said, times


def test_a_session_begins_and_ends_with_its_hours_every_day(monkeypatch):
    third_day = EVENING + timedelta(days=2, minutes=-30)
    said, times = lend(monkeypatch, lambda leave: leave.wait(), stop_at=third_day)
    assert [what for what, _ in times] == ["begins", "ends"] * 2
    for (_, begin), (_, end), day in ((*times[:2], 1), (*times[2:], 2)):
        assert begin.day == end.day == day
        assert begin.hour == end.hour == 22
        assert begin.minute <= 1
        assert 5 <= end.minute <= 8
    assert said[0] == "waiting until 22:00; Ctrl-C leaves"
    assert "its hours are over" in said[1]


def test_on_its_battery_a_machine_is_not_lent(monkeypatch):
    for battery, is_lent in (
        (None, True),  # a machine without one
        (SimpleNamespace(percent=90, power_plugged=True), True),
        (SimpleNamespace(percent=90, power_plugged=None), True),  # it does not say
        (SimpleNamespace(percent=90, power_plugged=False), False),
    ):
        monkeypatch.setattr("psutil.sensors_battery", lambda found=battery: found, raising=False)
        assert PluggedIn().holds(EVENING) == is_lent, battery


def test_a_system_that_knows_no_batteries_is_plugged_in(monkeypatch):
    monkeypatch.delattr("psutil.sensors_battery", raising=False)
    assert PluggedIn().holds(EVENING)


def test_without_psutil_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ExtraMissing, match=r"`--plugged-in`.*psutil.*volunteer"):
        PluggedIn()


class Plug(PluggedIn):
    """Pulled out from 22:02 to 22:04."""

    def holds(self, now):
        return not (now.hour == 22 and 2 <= now.minute < 4)


def test_a_session_ends_as_the_plug_is_pulled_and_another_begins_as_it_is_back(monkeypatch):
    said, times = lend(
        monkeypatch,
        lambda leave: leave.wait(),
        text="22:00-22:30",
        stop_at=EVENING + timedelta(minutes=15),
        rules=[Plug()],
    )
    assert [what for what, _ in times] == ["begins", "ends"] * 2
    assert said == [
        "waiting until 22:00; Ctrl-C leaves",
        "it runs on its battery: leaving until it is plugged in",
        "waiting until it is plugged in; Ctrl-C leaves",
    ]


@pytest.mark.parametrize(("text", "checks"), [("22:00-22:30", 1), ("21:00-22:30", 0)])
def test_where_the_first_session_has_to_wait_access_is_checked_before(monkeypatch, text, checks):
    checked = []

    async def check():
        checked.append(True)

    async def session(leave):
        assert len(checked) == checks

    lend(monkeypatch, session, text=text, check=check)
    assert len(checked) == checks


def test_what_the_check_refuses_is_not_waited_for(monkeypatch):
    async def check():
        raise SwarmRefuses(reason="its credential was revoked")

    with pytest.raises(SwarmRefuses):
        lend(monkeypatch, lambda leave: leave.wait(), check=check)


def test_asked_to_leave_it_ends_its_session_first(monkeypatch):
    left = []

    async def session(leave):
        await leave.wait()
        await asyncio.sleep(0.01)  # what was computed goes to the leader
        left.append(True)

    _, times = lend(monkeypatch, session, stop_at=EVENING + timedelta(minutes=4))
    assert left == [True]
    assert [what for what, _ in times] == ["begins", "ends"]


def test_where_the_run_is_over_nothing_is_waited_for(monkeypatch):
    async def session(leave):
        await asyncio.sleep(0)

    _, times = lend(monkeypatch, session)
    assert [what for what, _ in times] == ["begins", "ends"]


def test_where_no_backbone_answers_it_is_tried_again_until_and_after_the_hours(monkeypatch):
    monkeypatch.setattr(lending_times, "AGAIN_SECONDS", 0.001)
    days = []

    async def session(leave):
        days.append(1)
        if len(days) < 12:
            raise SwarmUnreachable(addresses="tcp://a:1", problem="nobody is there")

    said, times = lend(monkeypatch, session)
    assert len(days) >= 12
    assert len({time.day for _, time in times}) > 1, "also on the next day"
    assert sum("nobody is there" in one and "Trying again" in one for one in said) == 11


def test_an_error_of_a_session_is_not_swallowed(monkeypatch):
    async def session(leave):
        raise ConnectionRefusedError("no leader")

    with pytest.raises(ConnectionRefusedError):
        lend(monkeypatch, session)
