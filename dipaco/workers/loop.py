"""The loop of a worker: claim a task, do it, record its facts, until nothing is ready.

One process that runs until idle does a whole run; there is no other runner. Interrupted at any
point, the claimed task goes back and is done again, to the same bytes.
"""

import contextlib
from collections.abc import Callable
from typing import Protocol

from dipaco.control.tasks import Claim, Fact
from dipaco.data.prepare import PrepareProgress
from dipaco.errors import DipacoError
from dipaco.runs.run import Run
from dipaco.workers.evaluator import evaluate_release, score_path
from dipaco.workers.executor import step_module
from dipaco.workers.reporter import write_report
from dipaco.workers.stages import prepare_corpus, route
from dipaco.workers.trainer import train


class Watcher(Protocol):
    """Is told what the loop does; decides nothing."""

    def began(self, claim: Claim) -> None: ...

    def prepared(self, progress: PrepareProgress) -> None: ...

    def stepped(self, claim: Claim, loss: float, tokens: int) -> None: ...

    def finished(self, claim: Claim, facts: list[Fact]) -> None: ...


def run_once(run: Run, worker: str, watcher: Watcher) -> bool:
    """Does one task; False where none is ready."""
    claim = run.ledger.claim(worker)
    if claim is None:
        return False
    try:
        watcher.began(claim)
        facts = do(run, claim, watcher)
        run.ledger.finish(run.plan, claim, facts)
    except BaseException:
        # Where even this fails (a full disk), the task stays claimed, and `recover` gives it back.
        with contextlib.suppress(DipacoError):
            run.ledger.give_back(claim)
        raise
    watcher.finished(claim, facts)
    _sweep(run, claim)
    return True


def run_until_idle(run: Run, worker: str, watcher: Watcher) -> None:
    """Does tasks until none is ready. With one worker, that is when the run is finished."""
    while run_once(run, worker, watcher):
        pass


def do(run: Run, claim: Claim, watcher: Watcher) -> list[Fact]:
    """Does one task of any kind; returns the facts to record."""
    kinds: dict[str, Callable[[], list[Fact]]] = {
        "prepare": lambda: prepare_corpus(run, claim, watcher.prepared),
        "pretrain": lambda: train(run, claim, lambda *step: watcher.stepped(claim, *step)),
        "route": lambda: route(run, claim),
        "train": lambda: train(run, claim, lambda *step: watcher.stepped(claim, *step)),
        "outer": lambda: step_module(run, claim),
        "score": lambda: score_path(run, claim),
        "evaluate": lambda: evaluate_release(run, claim),
        "report": lambda: write_report(run, claim),
    }
    return kinds[claim.task.kind]()


def _sweep(run: Run, claim: Claim) -> None:
    """Removes what the recorded facts have superseded: averaged contributions, snapshots of earlier
    phases.

    A crash before this leaves them behind, until `recover` comes by.
    """
    task, objects = claim.task, run.objects
    if task.kind == "outer":
        for name in run.ledger.superseded_messages(task.arm, task.module, task.phase):
            objects.delete(name)
            objects.delete_folder_if_empty(name)
    if task.kind in ("train", "pretrain"):
        for name in run.ledger.superseded_snapshots(task.arm, task.path, task.phase):
            objects.delete(name)


def recover(run: Run) -> None:
    """Puts a run in order that no process works on: claimed tasks are ready again, half-written
    files are gone, and so is what nobody will read.
    """
    run.ledger.give_back_all()
    run.objects.sweep()
    run.objects.keep_only(run.ledger.live_names())


def progress_of(run: Run) -> tuple[int, int]:
    """Inner steps done and in all, over every path of every arm: what most of the time goes
    into.
    """
    done = total = 0
    for arm in (run.plan.base, *run.plan.arms):
        total += arm.topology.num_paths * arm.total_steps
        done += sum(len(losses) for losses in run.ledger.losses(arm.name).values())
    return done, total
