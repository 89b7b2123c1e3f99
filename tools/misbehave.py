"""Runs a `dipaco` command line in a process that breaks a rule when it is told to.

    python tools/misbehave.py '{"orders": "FOLDER/worker-3"}' worker --run DIR --name worker-3

Functions of `dipaco` are wrapped here, since the product has no hooks for any of it.

- Wrong contributions: when a file `FOLDER/worker-3.order` names a corruption, the next contribution
  is corrupted so, and `FOLDER/worker-3.done` says so once it is recorded.
- Death at a named point (`support/fault_points.py`): `"fault": {"where": ..., ...}` and
  `"marker": FILE`.
- A sign of life of a monitor: `"looked": FILE` is there once it has looked at the run.
- Another program, of this version and of other sources: `"version": "0.0.0"`.
- No patience: with `"is_eager": true` an idle worker looks for tasks all the time, so that it finds
  one before busy workers take them.
- A machine of a certain speed: with `"task_seconds": 10`, training a path through a phase takes
  10 s from the claim to the record, on any machine that can do it in less, until there is a file
  `"hurry": FILE`. Half of it are the steps, so that a worker may be stopped in the middle.
- A machine of a certain speed, by steps: with `"step_seconds": 0.5` each inner step of a path takes
  so long. `"steps_taken": FILE` says of each how long it took, and how long a processor worked for
  this process before the first of a phase.
- Only some kinds of tasks: `"kinds": ["train", "outer"]`.
- A separate machine: with `"machine": "NAME"` no process of this machine can see that it has
  ended: its claims end with their leases.
- A sign of uploads: `"uploading": FILE` is there while an object is sent to a bucket.
"""

import dataclasses
import itertools
import json
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from storms.corruptions import CORRUPTIONS, TWICE
from support.fault_points import Fault, install, wrap

import dipaco
import dipaco.cli.main
from dipaco import trees
from dipaco.control.claims.queue import Queue
from dipaco.control.facts.commit import Commit
from dipaco.control.planning.tasks import Contribution
from dipaco.control.process_id import ProcessId
from dipaco.errors import ClaimLost
from dipaco.outer.codecs.sealed import LARGEST
from dipaco.runs import version
from dipaco.store.remote import Remote
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers import loop, runners
from dipaco.workers.monitor import Monitor
from dipaco.workers.tasks import train


class OrderFile:
    """The corruption that another process wants, and its outcome."""

    def __init__(self, place: Path):
        self._order = place.with_name(f"{place.name}.order")
        self._done = place.with_name(f"{place.name}.done")

    def take(self, *corruptions: str) -> str | None:
        """Takes the wanted corruption, if it is one of these."""
        if not self._order.exists() or (wanted := self._order.read_text()) not in corruptions:
            return None
        self._order.unlink()
        return wanted

    def again(self, corruption: str) -> None:
        """It was not recorded, and is wanted still."""
        self._order.write_text(corruption)

    def done(self, corruption: str) -> None:
        with self._done.open("a") as file:
            print(corruption, file=file)


def corrupt_on_order(orders: OrderFile) -> None:
    """Wraps what sends contributions, and what records them."""
    finish_training, finish = train.end_phase, Commit.finish
    sent: list[str] = []  # corruptions that are not recorded yet

    def finished(run: Any, begun: Any, *rest: Any, **more: Any) -> list[Any]:
        facts = finish_training(run, begun, *rest, **more)
        phase = begun.claim.task.phase
        possible = [each for each in CORRUPTIONS if each != "stale" or phase > 0]
        for at, fact in enumerate(facts):
            if isinstance(fact, Contribution) and (wanted := orders.take(*possible)) is not None:
                facts[at] = corrupted(run, fact, wanted)
                sent.append(wanted)
        return facts

    def recorded(commit: Commit, plan: Any, claim: Any, facts: Any, **how: Any) -> list[Any]:
        try:
            due = finish(commit, plan, claim, facts, **how)
        except ClaimLost:
            while sent:
                orders.again(sent.pop())
            raise
        while sent:
            orders.done(sent.pop())
        if claim.task.kind == "train" and orders.take(TWICE):
            try:
                finish(commit, plan, claim, facts, **how)
            except ClaimLost:
                orders.done(TWICE)
        return due

    train.end_phase = finished  # ty: ignore[invalid-assignment]
    Commit.finish = recorded  # ty: ignore[invalid-assignment]


class Pace:
    """Makes training tasks take a given time.

    Args:
      task_seconds: from the claim to the record.
      hurry: once this file is there, tasks are no longer slowed.
    """

    STEPS_SHARE = 0.5  # share of the task's time

    def __init__(self, task_seconds: float, hurry: Path):
        self._task_seconds, self._hurry = task_seconds, hurry
        self._began = time.monotonic()

    def install(self) -> None:
        """Wraps what claims, what steps and what records."""
        wrap(Queue, "claim", after=self._claimed)
        wrap(Queue, "claim_backup", after=self._claimed)
        run_phase, finish = runners.run_phase, Commit.finish

        def paced_phase(state: Any, batches: Any, rates: Any, *rest: Any, **settings: Any) -> Any:
            on_step = settings.pop("on_step")

            def stepped(step: int, loss: Any) -> None:
                on_step(step, loss)
                taken = settings.get("taken", 0)
                self._wait_until(self.STEPS_SHARE * (step - taken) / len(rates))

            return run_phase(state, batches, rates, *rest, on_step=stepped, **settings)

        def paced_finish(commit: Commit, plan: Any, claim: Any, facts: Any, **how: Any) -> Any:
            if claim.task.kind == "train":
                self._wait_until(1.0)
            return finish(commit, plan, claim, facts, **how)

        vars(runners)["run_phase"] = paced_phase
        Commit.finish = paced_finish  # ty: ignore[invalid-assignment]

    def _claimed(self, claim: Any) -> None:
        if claim is not None:
            self._began = time.monotonic()

    def _wait_until(self, share: float) -> None:
        """Waits until this share of the task's time has passed."""
        until = self._began + share * self._task_seconds
        while (left := until - time.monotonic()) > 0 and not self._hurry.exists():
            time.sleep(min(left, 0.2))


class StepPace:
    """Makes inner steps take a given time, on any machine that can do them in less.

    Args:
      step_seconds: of each.
      steps_taken: a file with a line of JSON for each step: its seconds, when it ended, and how
        long a processor worked for this process between it and the phase before, if it begins one.
    """

    def __init__(self, step_seconds: float, steps_taken: Path):
        self._step_seconds, self._steps_taken = step_seconds, steps_taken
        self._processor_seconds = 0.0  # when the last steps ended

    def install(self) -> None:
        """Wraps what steps."""
        run_phase = runners.run_phase

        def paced_phase(state: Any, batches: Any, rates: Any, *rest: Any, **settings: Any) -> Any:
            on_step, began = settings.pop("on_step"), time.monotonic()
            ended, between = began, time.process_time() - self._processor_seconds

            def stepped(step: int, loss: Any) -> None:
                nonlocal ended, between
                on_step(step, loss)
                until = began + (step - settings.get("taken", 0)) * self._step_seconds
                time.sleep(max(0.0, until - time.monotonic()))
                now = time.monotonic()
                taken = {
                    "seconds": now - ended,
                    "processor_seconds_before": between,
                    "at": time.time(),
                }
                with self._steps_taken.open("a") as file:
                    print(json.dumps(taken), file=file)
                ended, between = now, 0.0

            result = run_phase(state, batches, rates, *rest, on_step=stepped, **settings)
            self._processor_seconds = time.process_time()
            return result

        vars(runners)["run_phase"] = paced_phase


def mark_uploads(file: Path) -> None:
    """The file is there while at least one object is sent."""
    lock, sending = threading.Lock(), itertools.count(1)
    open_uploads: set[int] = set()
    write_new = Remote.write_new

    def marked(remote: Remote, name: str, content: bytes) -> bool:
        number = next(sending)
        with lock:
            open_uploads.add(number)
            file.touch()
        try:
            return write_new(remote, name, content)
        finally:
            with lock:
                open_uploads.remove(number)
                if not open_uploads:
                    file.unlink(missing_ok=True)

    Remote.write_new = marked  # ty: ignore[invalid-assignment]


def be_another_program(number: str) -> None:
    """Its sources differ from the run's: by its number alone it would be the same program."""
    vars(dipaco)["__version__"] = number
    vars(version)["sources_digest"] = lambda home: "0" * 10


def do_only(kinds: Collection[str]) -> None:
    """Whatever the verb, the worker claims these kinds of tasks alone."""
    started = loop.Worker.__init__

    def init(worker: Any, *rest: Any, **settings: Any) -> None:
        settings["kinds"] = tuple(kinds)
        started(worker, *rest, **settings)

    loop.Worker.__init__ = init


def be_on_machine(name: str) -> None:
    """Its process number then says nothing to processes of this machine, as of one elsewhere."""
    process_id = ProcessId.here()._replace(namespace=name)
    setattr(ProcessId, "here", classmethod(lambda cls: process_id))  # noqa: B010


def corrupted(run: Any, contribution: Contribution, corruption: str) -> Contribution:
    """The contribution, but for one thing."""
    if corruption == "other run's":
        return dataclasses.replace(contribution, base_digest="0" * len(contribution.base_digest))
    arm, module, phase = contribution.arm, contribution.module, contribution.phase
    if corruption == "stale":
        before = run.ledger.facts.module(arm, module, phase - 1)
        return dataclasses.replace(contribution, base_digest=before.parameters.digest)
    message = dict(trees.flatten(load_tree(run.objects, contribution.message)))
    # A message without names (`outer/codecs/sealed.py`) has its floats changed, any other its first
    # leaf.
    name = next((name for name in message if name.endswith(f".{LARGEST}")), min(message))
    leaf = np.array(message[name])
    if corruption in ("NaN", "infinity"):
        leaf.reshape(-1)[0] = np.nan if corruption == "NaN" else np.inf
    others = {"wrong shape": leaf[:-1], "wrong type": leaf.astype(np.float64)}
    message[name] = others.get(corruption, leaf)
    kind = f"messages/{arm}/{module}/{phase:06d}"
    receipt = save_tree(run.objects, kind, trees.unflatten(message))
    return dataclasses.replace(contribution, message=receipt)


def main() -> int:
    request: dict[str, Any] = json.loads(sys.argv[1])
    if "version" in request:
        be_another_program(request["version"])
    if "orders" in request:
        corrupt_on_order(OrderFile(Path(request["orders"])))
    if "looked" in request:
        wrap(Monitor, "look", after=lambda _: Path(request["looked"]).touch())
    if "task_seconds" in request:
        Pace(request["task_seconds"], Path(request["hurry"])).install()
    if "step_seconds" in request:
        StepPace(request["step_seconds"], Path(request["steps_taken"])).install()
    if "uploading" in request:
        mark_uploads(Path(request["uploading"]))
    if "machine" in request:
        be_on_machine(request["machine"])
    if "kinds" in request:
        do_only(request["kinds"])
    if request.get("is_eager"):
        vars(loop)["MAX_WAIT_SECONDS"] = loop.MIN_WAIT_SECONDS
    if "fault" in request:
        install(Fault(**request["fault"]), marker=Path(request["marker"]))
    return dipaco.cli.main.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
