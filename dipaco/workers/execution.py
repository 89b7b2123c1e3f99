"""Executes one task of any kind, with all hosts of the worker or its first host alone.

The table of kinds stands in `execute`.
"""

import contextlib
from collections.abc import Callable

from dipaco.control.planning.tasks import Claim, Fact
from dipaco.errors import DipacoError
from dipaco.runs.run import Run
from dipaco.stopping import noting_progress
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import Preempted
from dipaco.workers.fetching import bring_module
from dipaco.workers.hosts import decode_claim, encode_claim
from dipaco.workers.runners import OneHost, Runner
from dipaco.workers.tasks.alternation import label_path
from dipaco.workers.tasks.evaluate import evaluate_release
from dipaco.workers.tasks.features import slice_of_features
from dipaco.workers.tasks.outer import step_module
from dipaco.workers.tasks.prepare import prepare_step
from dipaco.workers.tasks.report import write_report
from dipaco.workers.tasks.reroute import reroute
from dipaco.workers.tasks.route import route
from dipaco.workers.tasks.sample import sample_release
from dipaco.workers.tasks.score import check_path, score_path
from dipaco.workers.tasks.train import train
from dipaco.workers.tasks.train_synchronous import train_synchronous

# Kinds that need no devices of the other hosts. `sample` takes one device of the first.
FIRST_HOST_ONLY = ("prepare", "outer", "evaluate", "sample", "report")


def execute(
    run: Run,
    claim: Claim,
    callbacks: Callbacks,
    should_stop: Callable[[], bool],
    runner: Runner | None = None,
    should_leave: Callable[[], bool] = lambda: True,
) -> list[Fact]:
    """Executes a claimed task, and returns the facts to record.

    Args:
      should_stop: called before each step.
      runner: takes the steps of paths. All of its hosts take part in tasks that use devices. The
        first broadcasts the claim. None is this process alone.
      should_leave: called while the task waits for late modules (`outer.delay`).

    Raises:
      Preempted: `should_stop` returned True, or `should_leave` did.
      ClaimLost, and what the task raises.
    """
    runner = runner or OneHost(run)
    hosts = runner.hosts

    @noting_progress
    def on_step(loss: float, tokens: int) -> None:
        callbacks.step_taken(claim, loss, tokens)

    def train_path(runner: Runner) -> list[Fact]:
        if run.plan.arm(claim.task.arm).is_synchronous:
            return train_synchronous(run, claim, on_step, should_stop)
        return train(run, claim, runner, on_step, should_stop, should_leave)

    def step_of_module() -> list[Fact]:
        task = claim.task
        bring_module(run, task.arm, task.module, task.phase, with_outer_state=True)
        return step_module(run, claim)

    def route_step() -> list[Fact]:
        if claim.task.step:
            return slice_of_features(run, claim)
        return route(run, claim, is_first=hosts.is_first)

    kinds: dict[str, Callable[[], list[Fact]]] = {
        "prepare": lambda: prepare_step(run, claim, noting_progress(callbacks.prepare_progressed)),
        "pretrain": lambda: train_path(runner.without_volunteers),
        "route": lambda: hosts.run_on_all(route_step),
        "train": lambda: train_path(runner),
        "outer": step_of_module,
        "label": lambda: hosts.run_on_all(lambda: label_path(run, claim)),
        "check": lambda: hosts.run_on_all(lambda: check_path(run, claim)),
        "score": lambda: hosts.run_on_all(lambda: score_path(run, claim)),
        "evaluate": lambda: evaluate_release(run, claim),
        "sample": lambda: sample_release(run, claim),
        "reroute": lambda: reroute(run, claim, on_step, should_stop),
        "report": lambda: write_report(run, claim),
    }
    if hosts.is_first and claim.task.kind not in FIRST_HOST_ONLY:
        hosts.broadcast(encode_claim(claim))
    return kinds[claim.task.kind]()


def follow(run: Run, runner: Runner) -> None:
    """The loop of a host that is not the first: executes the claims that the first broadcasts,
    until it broadcasts None.
    """
    while (encoded := runner.hosts.broadcast()) is not None:
        # The first host meets the same error, and handles it.
        with contextlib.suppress(Preempted, DipacoError):
            execute(run, decode_claim(encoded), Callbacks(), lambda: False, runner)
