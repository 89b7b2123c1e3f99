"""Runs a `dipaco` command line in a process that does what it is told to, against all rules.

    python tools/misbehave.py '{"orders": "FOLDER/worker-3"}' worker --run DIR --name worker-3

Wrapped round functions of `dipaco` here; the product has no hooks for any of it.

- Contributions that are wrong: when there is a file `FOLDER/worker-3.order` with the name of a lie,
  the next contribution is that lie, and `FOLDER/worker-3.told` says so once it is recorded.
- Death at a named point (`tools/driver.py`): `"fault": {"where": ..., "marker": ...}`.
- A sign of life of a monitor: `"looked": FILE` is there once it has looked at the run.
- Another version of the program: `"version": "0.0.0"`.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import driver
import numpy as np

import dipaco
import dipaco.cli.main
from dipaco import trees
from dipaco.control.ledger import Ledger
from dipaco.control.tasks import Contribution
from dipaco.errors import ClaimLost
from dipaco.workers.monitor import Monitor
from dipaco.workers.tasks import train as trainer

# The lie -> what `status` must say of it.
CORRUPTIONS = {
    "NaN": "holds a NaN or an infinity",
    "infinity": "holds a NaN or an infinity",
    "wrong shape": "expected float32",
    "wrong type": "expected float32",
    "other run's": "started from other parameters",
    "stale": "started from other parameters",
}
TWICE = "recorded twice"  # refused on the spot: there is nothing to make again


class Orders:
    """What this process is told to do, in files that somebody else writes."""

    def __init__(self, place: Path):
        self._order = place.with_name(f"{place.name}.order")
        self._told = place.with_name(f"{place.name}.told")

    def take(self, *lies: str) -> str | None:
        """The lie that is wanted now, if it is one of these; wanted no more."""
        if not self._order.exists() or (lie := self._order.read_text()) not in lies:
            return None
        self._order.unlink()
        return lie

    def done(self, what: str) -> None:
        with self._told.open("a") as told:
            print(what, file=told)


def lie_when_told(orders: Orders) -> None:
    """Wraps what sends contributions, and what records them."""
    finish_training, finish = trainer._finish, Ledger.finish
    sent: list[str] = []  # lies that are not recorded yet

    def finished(run: Any, begun: Any, *rest: Any) -> list[Any]:
        facts = finish_training(run, begun, *rest)
        phase = begun.claim.task.phase
        possible = [lie for lie in CORRUPTIONS if lie != "stale" or phase > 0]
        for at, fact in enumerate(facts):
            if isinstance(fact, Contribution) and (lie := orders.take(*possible)) is not None:
                facts[at] = false_arrival(run, fact, lie)
                sent.append(lie)
        return facts

    def recorded(ledger: Ledger, plan: Any, claim: Any, facts: Any) -> list[Any]:
        try:
            due = finish(ledger, plan, claim, facts)
        except ClaimLost:
            sent.clear()
            raise
        while sent:
            orders.done(sent.pop())
        if claim.task.kind == "train" and orders.take(TWICE):
            try:
                finish(ledger, plan, claim, facts)
            except ClaimLost:
                orders.done(TWICE)
        return due

    trainer._finish = finished  # ty: ignore[invalid-assignment]
    Ledger.finish = recorded  # ty: ignore[invalid-assignment]


def false_arrival(run: Any, arrival: Contribution, lie: str) -> Contribution:
    """The contribution, but for one thing."""
    if lie == "other run's":
        return dataclasses.replace(arrival, base_digest="0" * len(arrival.base_digest))
    if lie == "stale":
        before = run.ledger.module(arrival.arm, arrival.module, arrival.phase - 1)
        return dataclasses.replace(arrival, base_digest=before.parameters.digest)
    message = dict(trees.flatten(trainer.load_tree(run.objects, arrival.message)))
    name = min(message)
    leaf = np.array(message[name])
    if lie in ("NaN", "infinity"):
        leaf.reshape(-1)[0] = np.nan if lie == "NaN" else np.inf
    message[name] = {"wrong shape": leaf[:-1], "wrong type": leaf.astype(np.float64)}.get(lie, leaf)
    kind = f"messages/{arrival.arm}/{arrival.module}/{arrival.phase:06d}"
    receipt = trainer.save_tree(run.objects, kind, trees.unflatten(message))
    return dataclasses.replace(arrival, message=receipt)


def main() -> int:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    if "version" in asked:
        dipaco.__version__ = asked["version"]
    if "orders" in asked:
        lie_when_told(Orders(Path(asked["orders"])))
    if "looked" in asked:
        driver.wrap(Monitor, "look", after=lambda _: Path(asked["looked"]).touch())
    if "fault" in asked:
        fault: dict[str, Any] = asked["fault"]
        driver.Fault(**{**fault, "marker": Path(fault["marker"])}).put_in()
    return dipaco.cli.main.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
