"""The monitor: ends expired leases, and reports workers that fall silent and come back."""

from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.control.claims.silent_workers import Counter, Silence
from dipaco.control.facts.redos import Refusal
from dipaco.control.ledger import Ledger
from dipaco.observe.events import Event

LATEST_REFUSALS = 100  # among so many, numbers may be recorded out of order


class Monitor:
    """Watches the workers of a run, and remembers what it has reported.

    Args:
      silent_seconds: a worker without a heartbeat for as long, while this looks, counts as silent.
    """

    def __init__(self, ledger: Ledger, silent_seconds: float = LEASE_SECONDS):
        self._ledger, self._silent_seconds = ledger, silent_seconds
        self._silence, self._silent = Silence(), set[str]()
        self.is_alone = False  # no worker was here at the last look but silent ones
        number = max(0, ledger.redos.newest_refusal() - LATEST_REFUSALS)
        self._refusals = set(ledger.redos.refusals_after(number))

    def look(self) -> list[Event]:
        """The events since the last look."""
        events = [
            Event("lease_ended", {"worker": worker}, "warning")
            for worker in self._ledger.reaper.reap()
        ]
        here = {
            member.name: Counter(member.heartbeats, self._silent_seconds)
            for member in self._ledger.members.list()
            if member.state == "here"
        }
        silent = set(self._silence.over(here))
        self.is_alone = len(here) == len(silent)
        for name in sorted(silent - self._silent):
            fields = {"worker": name, "seconds": self._silent_seconds}
            events.append(Event("worker_silent", fields, "warning"))
        events += [Event("worker_back", {"worker": name}) for name in sorted(self._silent - silent)]
        self._silent = silent
        return events + [
            Event("refused", refusal._asdict(), "warning") for refusal in self._new_refusals()
        ]

    def _new_refusals(self) -> list[Refusal]:
        newest = max(self._refusals, default=0)
        refusals = self._ledger.redos.refusals_after(newest - LATEST_REFUSALS)
        new = [refusals[number] for number in refusals if number not in self._refusals]
        self._refusals = set(refusals)
        return new
