"""Reads a run's facts: all of it once, then the news.

On PostgreSQL a lower number of the history may be recorded after a higher one, so every read looks
at the last `OVERLAP` numbers again.
"""

import contextlib
import functools
import importlib.resources
import json
from typing import Any, NamedTuple

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Sampled
from dipaco.dashboard.facts import Cell, EventRow, RunFacts
from dipaco.runs.run import Run

OVERLAP = 200
AT_ONCE = 50_000  # events per query, so that a long history takes no more memory than its columns
FAULTS = frozenset(
    ("error", "crash", "lost", "postponed", "died", "silent", "left", "command", "rollback")
)


class Change(NamedTuple):
    """The news of one read."""

    first_event: int  # position of the first new event among all that were read
    steps: set[Cell]  # (phase, module) of the modular arm that have changed
    phases: dict[str, set[Cell]]  # arm -> (phase, path) that have changed
    outcomes: set[str]
    kinds: set[str]  # kinds of the finished tasks
    has_gone_back: bool  # facts were set aside, and everything is to be drawn again
    is_new: bool  # something was read, or the tasks in progress differ


class Reader:
    """Reads one run. Its ledger is used in one thread."""

    def __init__(self, run: Run):
        self.run, self.facts = run, RunFacts(run.plan)
        self.samples: list[Sampled] = []  # completions of the modular arm
        self._held: list[tuple] = []
        self._seen: set[int] = set()
        self._has_read = False

    def read(self, *, is_inside: bool = False) -> Change:
        """Reads the news; the first time everything.

        Args:
          is_inside: the caller is inside `at_one_moment` already.
        """
        select = self.run.ledger.select
        rows = select(statement("now"))
        number, held = rows[0][0], [row[1:] for row in rows if row[1] is not None]
        is_new = held != self._held or not self._has_read
        self._held = held
        first = self.facts.num_events
        if self._has_read and number <= self.facts.number:
            return Change(first, set(), {}, set(), set(), False, is_new)
        since = max(0, self.facts.number - OVERLAP) if self._has_read else 0
        # A fact that is recorded in between would have no event.
        ledger = self.run.ledger
        with contextlib.nullcontext() if is_inside else ledger.at_one_moment():
            outcomes, done = self._read_events(since)
            steps, phases = self._read_facts(since, done)
            if "sample" in done or "rollback" in outcomes or not self._has_read:
                self.samples = ledger.facts.samples(MODULAR)
        self._has_read = True
        is_new |= self.facts.num_events > first
        return Change(first, steps, phases, outcomes, done, "rollback" in outcomes, is_new)

    def _read_events(self, since: int) -> tuple[set[str], set[str]]:
        """The outcomes of the new events, and the kinds of the finished tasks."""
        outcomes, done, rows = set(), set(), [()] * AT_ONCE
        while len(rows) == AT_ONCE:
            rows = self.run.ledger.select(statement("events"), number=since, most=AT_ONCE)
            for event in (EventRow(*row) for row in rows if row[0] not in self._seen):
                self.facts.add(event)
                self._seen.add(event.number)
                outcomes.add(event.outcome)
                if event.outcome == "done":
                    done.add(event.kind or "")
            since = max((row[0] for row in rows), default=since)
            self._seen = {each for each in self._seen if each > self.facts.number - 2 * OVERLAP}
        return outcomes, done

    @property
    def claims(self) -> list[list[Any]]:
        """Tasks in progress: kind, arm, subject, phase, attempt, worker, seconds when it began."""
        return [
            [*row[:-1], None if row[-1] is None else self.facts.relative(row[-1])]
            for row in self._held
        ]

    def _read_facts(self, since: int, done: set[str]) -> tuple[set[Cell], dict[str, set[Cell]]]:
        """Reads facts of finished tasks; the first time all, also those without events. A phase
        that was skipped has no fact, and its time changes with the times of other phases.
        """
        select, arms = self.run.ledger.select, self.facts.arms
        suffix = "_since" if self._has_read else ""
        of: dict[str, Any] = {"number": since} if self._has_read else {}
        steps: set[Cell] = set()
        phases: dict[str, set[Cell]] = {name: set() for name in arms}
        if "outer" in done or not self._has_read:
            rows = select(statement(f"steps{suffix}"), arm=MODULAR, **of)
            arms[MODULAR].add_steps(rows)
            steps = {(row[1] - 1, arms[MODULAR].module_number[row[0]]) for row in rows}
        if done & {"train", "pretrain"} or not self._has_read:
            if of:
                synchronous = [name for name, arm in arms.items() if arm.synchronous]
                of["synchronous"] = json.dumps(synchronous)
            for arm, path, phase, *row in select(statement(f"phases{suffix}"), **of):
                arms[arm].add_phase(path, phase, tuple(row))
                phases[arm].add((phase, path))
        for name, arm in arms.items():
            moved, trained = arm.fill_times(is_first=not self._has_read)
            phases[name] |= trained
            if name == MODULAR:
                steps |= moved
        return steps, phases


@functools.cache
def statement(name: str) -> str:
    """The text of a `.sql` file of this room."""
    return importlib.resources.files("dipaco.dashboard").joinpath(f"{name}.sql").read_text()
