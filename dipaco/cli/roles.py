"""The verbs of the processes that share a run: `worker`, `executor`, `evaluator`, `pretrain`.

`dipaco train --workers` and `dipaco launch` start them with these same command lines.
"""

import argparse
from collections.abc import Collection

from dipaco.cli.options import (
    add_database,
    add_hosts,
    add_metrics,
    add_run,
    check_lease,
    name_of,
    with_metrics,
)
from dipaco.cli.run_commands import stopped
from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.control.planning.tasks import FIRST_KINDS, PRIORITY, Kind
from dipaco.workers.errors import BadHosts

_COMMON = """
Any number may be started and stopped at any time, on every machine that reaches the run's folder or
bucket and its database. SIGTERM: the current phase is saved part-way, and the next worker continues
from that step. SIGKILL, power loss: the lease of its task expires, and another worker does the task
again.
"""


class RoleVerb:
    """A verb that does some kinds of tasks until the run is finished."""

    def __init__(self, name: str, does: str, kinds: Collection[Kind]):
        self._name, self._kinds = name, kinds
        self.HELP = f"one more process for a run: {does}"
        example = f"  dipaco {name} --run runs/quickstart"
        self.__doc__ = f"Take part in a run as {name}: {does}.\n\n{example}\n{_COMMON}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        add_database(parser)
        add_metrics(parser)
        parser.add_argument("--name", help="name among the run's workers (default: one is made up)")
        parser.add_argument(
            "--lease-seconds",
            type=float,
            default=LEASE_SECONDS,
            metavar="S",
            help="how long it may go without a heartbeat before its task is given to another "
            f"(default: {LEASE_SECONDS:.0f})",
        )
        if self._name == "worker":
            add_hosts(parser)
            parser.add_argument(
                "--no-outer-steps",
                action="store_true",
                help="leave outer steps to executors and other workers: each sends a module whole, "
                "which takes long behind a slow link",
            )

    def kinds_of(self, options: argparse.Namespace) -> list[Kind]:
        """The kinds of tasks that it does."""
        leaves_steps = vars(options).get("no_outer_steps", False)
        return [kind for kind in self._kinds if not (leaves_steps and kind == "outer")]

    def run(self, options: argparse.Namespace) -> int:
        from dipaco.runs.allocator import keep_freed_memory

        keep_freed_memory()

        from dipaco.launch.equal_bits import ask_for_equal_bits

        ask_for_equal_bits()

        from dipaco.library.console import ConsoleReporter
        from dipaco.runs.opening import open_run
        from dipaco.runs.programs import use_compilation_cache
        from dipaco.stopping import end_before_machine
        from dipaco.workers.execution import follow
        from dipaco.workers.hosts import HostOptions, hosts_of_cluster, join_hosts
        from dipaco.workers.process import exit_with_other_hosts, joined_run, work
        from dipaco.workers.runners import runner_of

        host_options = HostOptions()
        if self._name == "worker" and options.hosts is None and options.coordinator is None:
            host_options = hosts_of_cluster()
        elif self._name == "worker":
            host_options = HostOptions(
                1 if options.hosts is None else options.hosts,
                options.host_index,
                options.coordinator,
            )
        host_options.check()
        check_lease(options.lease_seconds)
        name = name_of(options.name)
        run = open_run(options.run, options.database)  # raises before a lock file is made
        is_synchronous = any(arm.is_synchronous for arm in run.plan.arms)
        secret = run.ledger.meta.hosts_secret() if host_options.hosts > 1 else ""
        is_over = run.ledger.queue.is_finished()
        run.ledger.close()
        if host_options.hosts > 1 and is_over:
            return 0  # A host that comes back alone: others of its worker may have ended for good.
        if host_options.hosts > 1 and is_synchronous:
            raise BadHosts(
                problem="`outer.synchronous` and the baseline data_parallel step all paths in one "
                "process of one host"
            )
        hosts = join_hosts(host_options, secret)
        use_compilation_cache()
        end_before_machine()
        with joined_run(options.run, options.database) as run, exit_with_other_hosts(hosts):
            if not hosts.is_first:
                follow(run, runner_of(run, hosts))
                return 0 if run.ledger.queue.is_finished() else stopped(run.ledger)
            with ConsoleReporter(run) as console, with_metrics(run, options, console) as callbacks:
                is_finished = work(
                    run,
                    name,
                    callbacks,
                    kinds=self.kinds_of(options),
                    lease_seconds=options.lease_seconds,
                    runner=runner_of(run, hosts),
                )
            return 0 if is_finished else stopped(run.ledger)


WORKER = RoleVerb("worker", "does any task that is due", tuple(PRIORITY))
EXECUTOR = RoleVerb("executor", "steps modules when their contributions are in", ("outer",))
EVALUATOR = RoleVerb(
    "evaluator",
    "scores paths, evaluates releases, and samples texts of them",
    ("label", "check", "score", "evaluate", "sample", "reroute", "report"),
)
PRETRAINER = RoleVerb(
    "pretrain", "prepares the text and trains the base model, then leaves", FIRST_KINDS
)
