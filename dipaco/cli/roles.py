"""The roles of processes that share a run, one verb each; `dipaco train --workers` and `launch`
start them by these very command lines.
"""

import argparse
from collections.abc import Collection

from dipaco.cli.bounds import check_lease
from dipaco.cli.metrics import add_metrics, counted
from dipaco.cli.names import name_of
from dipaco.cli.orders import stopped_in_order
from dipaco.cli.runs import add_run
from dipaco.control.queue import LEASE_SECONDS
from dipaco.control.tasks import FIRST_KINDS, PRIORITY, Kind
from dipaco.workers.errors import BadHosts

_COMMON = """
Any number may be started and stopped at any time, here or wherever the run's folder or bucket and
its database can be reached. SIGTERM: the phase in hand is saved part-way, and the next worker goes
on from that step. SIGKILL, power: the lease of what it did ends, and another does it again.
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
        parser.add_argument("--name", help="in the roster; else host and process number")
        parser.add_argument(
            "--lease-seconds",
            type=float,
            default=LEASE_SECONDS,
            metavar="S",
            help=f"how long it may be silent before its task is another's "
            f"(default: {LEASE_SECONDS:.0f})",
        )
        if self._name == "worker":
            add_hosts(parser)

    def run(self, options: argparse.Namespace) -> int:
        from dipaco.runs.allocator import keep_freed_memory

        keep_freed_memory()

        from dipaco.caches import cache_folder
        from dipaco.cli.console import ConsoleReporter
        from dipaco.cli.working import dying_together, work
        from dipaco.runs.programs import keep_compiled
        from dipaco.runs.run import open_run, taking_part
        from dipaco.workers.hosts import Meeting, meet
        from dipaco.workers.loop import follow, recover

        asked = vars(options)
        meeting = Meeting(
            asked.get("hosts", 1), asked.get("host_index", 0), asked.get("coordinator")
        )
        meeting.check()
        check_lease(options.lease_seconds)
        name = name_of(options.name)
        run = open_run(options.run, options.database)  # before a lock is put there
        is_synchronous = run.config.outer.synchronous
        run.ledger.close()
        if meeting.hosts > 1 and is_synchronous:
            raise BadHosts(problem="`outer.synchronous` steps all paths in one process of one host")
        hosts = meet(meeting)
        keep_compiled(cache_folder() / "compiled")
        with taking_part(options.run) as part:
            run = open_run(options.run, options.database)
            try:
                if part.is_alone:
                    recover(run)
                part.let_others_in()
                with dying_together(hosts):
                    if not hosts.is_first:
                        follow(run, hosts)
                        return 0
                    with (
                        ConsoleReporter(run) as console,
                        counted(run, options, console) as callbacks,
                    ):
                        is_finished = work(
                            run,
                            name,
                            callbacks,
                            kinds=self._kinds,
                            lease_seconds=options.lease_seconds,
                            hosts=hosts,
                        )
                    if not is_finished:
                        print(stopped_in_order(run.ledger))
            finally:
                run.ledger.close()
        return 0


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """The options of a worker that is one program over several machines."""
    parser.add_argument(
        "--hosts", type=int, default=1, metavar="H", help="machines of this one worker (default: 1)"
    )
    parser.add_argument(
        "--host-index", type=int, default=0, metavar="I", help="which of them this is: 0 to H-1"
    )
    parser.add_argument(
        "--coordinator", metavar="HOST:PORT", help="of the first host, where they meet"
    )


def add_database(parser: argparse.ArgumentParser) -> None:
    """The option `--database`."""
    parser.add_argument(
        "--database",
        metavar="URL",
        help="postgresql://HOST/NAME, or env:VARIABLE with such a URL; else SQLite in the folder",
    )


WORKER = RoleVerb("worker", "does whatever is due", tuple(PRIORITY))
EXECUTOR = RoleVerb("executor", "steps modules when their contributions are in", ("outer",))
EVALUATOR = RoleVerb(
    "evaluator",
    "scores paths, and evaluates releases",
    ("label", "check", "score", "evaluate", "reroute", "report"),
)
PRETRAINER = RoleVerb(
    "pretrain", "prepares the text and trains the base model, then leaves", FIRST_KINDS
)
