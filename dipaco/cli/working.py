"""One process at work on a run: its heart, its place in the roster, and what signals mean to it."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Collection, Generator

from dipaco.cli.console import ConsoleReporter
from dipaco.cli.say import say
from dipaco.cli.signals import on_sigterm
from dipaco.control.queue import ALL_KINDS, LEASE_SECONDS
from dipaco.control.tasks import Kind
from dipaco.errors import DipacoError
from dipaco.inner.phase_runner import PhaseRunner
from dipaco.runs.programs import machine
from dipaco.runs.run import Run
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.hosts import ALONE, Alone, Hosts
from dipaco.workers.loop import Worker
from dipaco.workers.registration import join
from dipaco.workers.tasks.prepare import restore_corpus


def work(
    run: Run,
    name: str,
    console: ConsoleReporter,
    *,
    kinds: Collection[Kind] = ALL_KINDS,
    lease_seconds: float = LEASE_SECONDS,
    run_elsewhere: PhaseRunner | None = None,
    hosts: Hosts = ALONE,
    on_ctrl_c: bool = False,
) -> bool:
    """Works until the run is finished (True), or until SIGTERM, or Ctrl-C `on_ctrl_c`, which saves
    a phase part-way. The other hosts of this worker then end as well.

    Raises:
      NameTaken: another worker of this name is here.
    """
    members = run.ledger.members
    join(members, name, machine(), say)
    run.ledger.queue.give_back_of_namesake(name)
    with LeaseRenewer(run.open_ledger, name, lease_seconds) as renewer:
        if "train" in kinds:
            console.compare_machines(run.ledger.remember("machine", machine()), machine())
        restore_corpus(run, console.prepared)
        worker = Worker(
            run,
            name,
            console,
            renewer,
            kinds=kinds,
            lease_seconds=lease_seconds,
            run_elsewhere=run_elsewhere,
            hosts=hosts,
        )
        with on_sigterm(worker.stop, on_ctrl_c=on_ctrl_c):
            is_finished = worker.run_until_finished()
        members.leave(name)
    hosts.tell(None)
    return is_finished


@contextlib.contextmanager
def dying_together(hosts: Hosts) -> Generator[None]:
    """For a host of several: where it fails, it ends at once, and does not wait for the others at
    the door; they are ended by JAX, which no longer hears of it.
    """
    if isinstance(hosts, Alone):
        yield
        return
    if hosts.is_first:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # but while `work` listens to it
    else:
        signal.signal(signal.SIGTERM, hosts.leave)
        signal.signal(signal.SIGINT, hosts.leave)
    try:
        yield
        hosts.part()
    except BaseException as error:
        if isinstance(error, DipacoError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(error.exit_code if isinstance(error, DipacoError) else 1)
