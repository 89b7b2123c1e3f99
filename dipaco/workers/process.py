"""One process that works on a run: it opens the run, registers, renews its leases, handles signals.

`train`, `launch`, the worker verbs and `swarm start` all take part in a run through this file.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Generator
from pathlib import Path

from dipaco.config import RunConfig
from dipaco.control.claims.queue import ALL_KINDS, LEASE_SECONDS
from dipaco.control.errors import DatabaseUnreachable
from dipaco.control.planning.tasks import Kind
from dipaco.control.process_id import ProcessId
from dipaco.data.prepare import check_files
from dipaco.errors import DipacoError, MachineFault
from dipaco.overrides import from_tree
from dipaco.runs.folder_lock import folder_lock
from dipaco.runs.machine import machine
from dipaco.runs.meshes import why_not_trained
from dipaco.runs.opening import create_or_open, has_begun, open_run, with_report_settings
from dipaco.runs.rules import Rules, check_settings, record_of
from dipaco.runs.run import Run
from dipaco.runs.version import check_program
from dipaco.stopping import on_sigterm
from dipaco.store.address import Address
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import CannotTrainHere
from dipaco.workers.failing import reason_of
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.hosts import Hosts, SingleHost
from dipaco.workers.keeping import clean_up
from dipaco.workers.loop import Worker, kinds_done_by
from dipaco.workers.origin import check_origin, from_checkpoint, from_run
from dipaco.workers.registration import register
from dipaco.workers.runners import OneHost, Runner
from dipaco.workers.tasks.prepare import restore_corpus

OF_TRAINING: frozenset[Kind] = frozenset(("pretrain", "train"))  # they need the run's devices


@contextlib.contextmanager
def begun_run(
    address: Address,
    config: RunConfig,
    database: str | None = None,
    *,
    init_from: Path | None = None,
    start_from: str | None = None,
    rules: Rules | None = None,
    reads_text: bool = False,
    check_machine: Callable[[RunConfig], object] | None = None,
    check_new: Callable[[RunConfig], object] | None = None,
    check_open: Callable[[Run], object] | None = None,
) -> Generator[tuple[Run, bool]]:
    """Begins a run or opens the one that is there, and holds its folder's lock meanwhile. Tasks
    that failed are tried again: the command means that their cause was put right.

    Args:
      database: keeps the facts of a new run. None keeps them in the folder.
      init_from: a Hugging Face checkpoint that a new run starts from.
      start_from: `DIR@PHASE` of another run that a new run starts from.
      rules: the run's own rules. None: the run's recorded ones, if any.
      reads_text: this machine will prepare a new run's text. If all of the run is in its folder,
        missing files are reported before the folder is made.
      check_machine: raises if this machine cannot train the run. It is called with the config of a
        new run without a `database`, before anything is copied or recorded. None: others train.
      check_new: raises if a new run must not begin. It is called as `check_machine` is, whatever
        the `database`.
      check_open: raises if this process must not take part. It is called before the run changes.

    Yields:
      (the run, whether it was begun just now).

    Raises:
      BadSetting: a value of the config is not of its setting's type. Nothing was written.
      BadSource, BadTokenizer: no file of that name is here (`reads_text`).
      CannotTrainHere: `check_machine` raises a fault. Its other errors, and all of the other
        checks, are raised as they are.
      RuleUnnamed: a rule that no worker could import.
      RunBusy, OptionTooLate, CannotStartFrom, and what `create_or_open` and `joined_run` raise.
    """
    config = from_tree(dataclasses.asdict(config))  # its ledger will give it back like this
    recorded = None if rules is None else record_of(rules)
    is_here = address.remote is None and database is None and start_from is None
    if reads_text and is_here and not address.folder.exists():
        data = config.corpus
        if init_from is not None:  # it brings its own tokenizer
            data = dataclasses.replace(data, tokenizer=None)
        check_files(data)
    with folder_lock(address) as lock:
        given = None
        # A run that has begun has copied its origin, which may be gone.
        if not has_begun(address, config, recorded, is_alone=lock.is_exclusive):
            if check_machine is not None and database is None:
                try:
                    check_machine(config)
                except MachineFault as fault:
                    raise CannotTrainHere(problem=fault) from fault
            if check_new is not None:
                check_new(config)
            check_settings(config, recorded or {})  # before bytes are copied
            if init_from is not None:
                given = from_checkpoint(config, address, init_from)
            elif start_from is not None:
                given = from_run(config, address, start_from, recorded)
        opened, is_new = create_or_open(
            address, config, given, database, recorded, is_alone=lock.is_exclusive
        )
        try:
            opened.import_rules()
            check_origin(opened, init_from, start_from)
            if check_open is not None:
                check_open(opened)
            opened = with_report_settings(opened, config)
            clean_up(opened, is_first=lock.is_exclusive)
            lock.share()
            for task in opened.ledger.failures.retry():
                print(f"{task} had failed and is tried again", flush=True)
            yield opened, is_new
        finally:
            opened.ledger.close()


@contextlib.contextmanager
def joined_run(address: Address, database: str | None = None) -> Generator[Run]:
    """Opens a run that has begun, and holds its folder's lock meanwhile.

    Raises:
      RuleNotImportable, RuleDiffers: its own rules are not here as it began with them.
      NoSuchRun, and what else `open_run` raises.
    """
    with folder_lock(address) as lock:
        opened = open_run(address, database)
        try:
            clean_up(opened, is_first=lock.is_exclusive)
            lock.share()
            opened.import_rules()
            yield opened
        finally:
            opened.ledger.close()


def work(
    run: Run,
    name: str,
    callbacks: Callbacks,
    *,
    kinds: Collection[Kind] = ALL_KINDS,
    lease_seconds: float = LEASE_SECONDS,
    runner: Runner | None = None,
    on_ctrl_c: bool = False,
) -> bool:
    """Works until the run is finished (True) or the process is asked to stop (False).

    SIGTERM asks it to stop, and with `on_ctrl_c` so does the first Ctrl-C. The phase in progress is
    saved first. The other hosts of this worker then end as well. A process alone whose devices
    cannot train the run takes no steps, and ends when the text is prepared and nothing else is due.
    A worker of several hosts is refused before it registers.

    Raises:
      NameTaken: another worker of this name is working on the run.
      TaskFailed, MachineFault: as `Worker.run_until_finished`.
      RunOfOtherVersion: the run is pinned to another program.
      BadMesh, DevicesUnfit, KernelUnavailable: the devices cannot train it.
    """
    runner = runner or OneHost(run)
    hosts = runner.hosts
    if not run.ledger.queue.unfinished_kinds():  # any version of the program may have done it
        hosts.broadcast(None)
        return True
    check_program(run.address, run.ledger.meta.get("version") or "")
    members, kinds = run.ledger.members, kinds_done_by(hosts, kinds)
    cannot_train = None
    if not OF_TRAINING.isdisjoint(kinds):
        cannot_train = why_not_trained(run.config)
    if cannot_train is not None:
        if hosts.count > 1:  # a smaller mesh, to score on, leaves a host without devices
            raise cannot_train
        kinds = [kind for kind in kinds if kind not in OF_TRAINING]
        print(f"This machine takes no training steps. {cannot_train}", flush=True)
    register(members, name, machine(), functools.partial(print, flush=True), kinds)
    run.ledger.queue.give_back_of_namesake(name)
    with (
        _last_words(run, name),
        LeaseRenewer(run.open_ledger, name, lease_seconds) as renewer,
    ):
        if "train" in kinds:
            callbacks.compare_machines(run.ledger.meta.remember("machine", machine()), machine())
        restore_corpus(run, callbacks.prepare_progressed)
        worker = Worker(
            run,
            name,
            callbacks,
            renewer,
            kinds=kinds,
            lease_seconds=lease_seconds,
            runner=runner,
            cannot_train=cannot_train,
        )
        with on_sigterm(worker.stop, on_ctrl_c=on_ctrl_c):
            is_finished = worker.run_until_finished()
            if is_finished:
                run.objects.need_no_unsent()
        members.leave(name, str(ProcessId.here()))
    hosts.broadcast(None)
    return is_finished


@contextlib.contextmanager
def _last_words(run: Run, name: str) -> Generator[None]:
    """Records why a worker ends that does not end in order, for `dipaco status`."""
    try:
        yield
    except DatabaseUnreachable:
        raise
    except Exception as error:
        with contextlib.suppress(DipacoError):
            run.ledger.members.leave(name, str(ProcessId.here()), reason_of(error))
        raise


@contextlib.contextmanager
def exit_with_other_hosts(hosts: Hosts) -> Generator[None]:
    """For one host of several: a failure ends this process at once, without waiting for the others
    at JAX's shutdown barrier. JAX ends them once it misses this one.
    """
    if isinstance(hosts, SingleHost):
        yield
        return
    if hosts.is_first:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # except while `work` handles it
    else:
        signal.signal(signal.SIGTERM, hosts.request_stop)
        signal.signal(signal.SIGINT, hosts.request_stop)
    try:
        yield
        hosts.shut_down()
    except BaseException as error:
        if isinstance(error, DipacoError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(error.exit_code if isinstance(error, DipacoError) else 1)
