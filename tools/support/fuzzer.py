"""What the fuzzers share: their options, their loop over seeded runs, and their answer."""

import argparse
import contextlib
import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from support.command_line import at_least_one, parser_of
from support.servers import server_at

# (dice, options, URL of the database) -> (outcome, what was drawn, what is to be said of it)
OneRun = Callable[[random.Random, argparse.Namespace, str | None], tuple[str, str, str]]


class Fuzzer:
    """A fuzzer's command line.

    Args:
      description: the tool's docstring.
      fine: outcomes that are no faults.
      shown: those of which a line is printed.
    """

    def __init__(self, description: str | None, fine: Sequence[str], shown: Sequence[str] = ()):
        self._fine, self._shown = fine, shown
        self.parser = parser_of(description)
        self.parser.add_argument("--runs", type=at_least_one, default=200, help="how many")
        self.parser.add_argument("--seed", type=int, default=0)
        self.parser.add_argument("--minutes", type=float, help="begin no run after so many")
        self.parser.add_argument("--run", type=int, metavar="N", help="this run alone")
        self.parser.add_argument("--database", help="postgresql = one started here; postgresql://")

    def main(self, one_run: OneRun, happened: Counter[str]) -> int:
        """Runs until the time is over, and prints the answer with what has `happened` meanwhile.
        Returns the exit code.
        """
        options = self.parser.parse_args()
        counts: Counter[str] = Counter(dict.fromkeys(self._fine, 0))
        wrong: list[dict[str, Any]] = []
        begun = time.monotonic()
        most = 10**9 if options.minutes is not None else options.runs
        with server_at(options.database) as url:
            for number in range(most) if options.run is None else [options.run]:
                if options.minutes is not None and time.monotonic() - begun > 60 * options.minutes:
                    break
                dice = random.Random(f"{options.seed} {number}")
                try:
                    outcome, drawn, said = one_run(dice, options, url)
                except Exception as error:
                    outcome, drawn, said = "fails", str(error), traceback.format_exc()
                if outcome in self._fine:
                    counts[outcome] += 1
                else:
                    wrong.append({"run": number, "settings": drawn, "outcome": outcome})
                if outcome in self._shown or outcome not in self._fine or options.run is not None:
                    print(f"{number:5} {outcome:9} {drawn}\n{said}".rstrip(), flush=True)
            deadlocks = None if url is None else deadlocks_of(url)
        answer: dict[str, Any] = {"runs": counts.total() + len(wrong), **counts, "wrong": wrong}
        answer |= {"happened": happened, "deadlocks": deadlocks, "seed": options.seed}
        print(json.dumps({**answer, "seconds": round(time.monotonic() - begun)}))
        return 1 if wrong else 0


def deadlocks_of(url: str) -> int:
    """Transactions that a server has ended for one."""
    import psycopg

    with contextlib.closing(psycopg.connect(url)) as connection:
        rows = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchall()
    return int(rows[0][0])
