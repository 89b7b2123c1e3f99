"""Train one path by machines that come and go (DeDLOC, arXiv 2106.10207, extra `volunteer`).

  dipaco swarm start CONFIG --run RUN [--path I]      a backbone: leads, holds state, saves
  dipaco swarm token --run RUN --name ANA --days 7    a credential for one name, a file to send
  dipaco swarm revoke ANA --run RUN                   revokes all credentials of that name
  dipaco swarm verify --run RUN                       replays a night, names the step of a lie
  dipaco swarm undo --run RUN --to STEP [--path I]    goes back to an earlier step
  dipaco swarm join ADDRESS --token FILE              lend this machine (Ctrl-C leaves cleanly)
  dipaco swarm watch ADDRESS --token FILE             how the run is, and who did how much

  dipaco swarm join ADDRESS --token FILE --threads 2 --megabits 10

`start` is a worker of the run that has the group take the steps of one path, and needs no
accelerator. Start two, and either may die. `dipaco status --run RUN` shows the group.
"""

import argparse
import contextlib
import functools
import importlib.util
import shlex
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dipaco.cli import swarm_join, swarm_verify, swarm_watch
from dipaco.cli.errors import NoRunToLead, NoSuchCredential, PathNeeded
from dipaco.cli.options import (
    DAY_SECONDS,
    add_database,
    add_run,
    add_set,
    check_between,
    check_lease,
    name_of,
    output_path,
)
from dipaco.cli.run_commands import stopped
from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.errors import BadSetting, ExtraMissing, NoSuchPath, SettingsDisagree

if TYPE_CHECKING:
    from dipaco.runs.run import Run
    from dipaco.swarm.network.credentials import Authority, Credential

say = functools.partial(print, flush=True)

HELP = "train a path by volunteers' machines: start, token, revoke, join, watch, verify, undo"
LISTEN = "0.0.0.0:0"
BACKBONE_DAYS = 3650.0
OWN_PREFIX = "backbone-"  # and the path: the names on the credentials of backbones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="swarm_verb", required=True, metavar="VERB")

    def verb(name: str, does: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".")

    start = verb("start", "begin a run, or go on with it, and lead the swarm of one of its paths")
    start.add_argument("config", type=Path, metavar="CONFIG", help="a file with run()")
    add_run(start)
    add_database(start)
    add_set(start)
    start.add_argument("--path", type=int, metavar="I", help="needed if the run has several")
    start.add_argument(
        "--listen",
        default=LISTEN,
        metavar="HOST:PORT",
        help="where peers reach this machine (default: any free port)",
    )
    start.add_argument(
        "--announce",
        metavar="HOST",
        help="name or address that peers are told (default: this machine's own)",
    )
    start.add_argument(
        "--token",
        type=Path,
        metavar="FILE",
        help="made by `token --backbone`, on a machine without the run's signing key",
    )
    start.add_argument("--name", help="name of this worker (default: one is made up)")
    start.add_argument(
        "--block-rows",
        type=int,
        metavar="N",
        help="rows in a block (default: a 32nd of a batch, an eighth with --local-steps)",
    )
    start.add_argument(
        "--codec",
        choices=("none", "int8"),
        default="none",
        help="codec of gradients on the wire (default: none, float32)",
    )
    start.add_argument(
        "--local-steps",
        type=int,
        default=1,
        metavar="H",
        help="steps that the holder of a block takes by itself before states are averaged, on thin "
        "lines (default: 1, the steps are those of one machine)",
    )
    start.add_argument(
        "--save-seconds", type=float, default=60.0, metavar="S", help="time between saves (60)"
    )
    start.add_argument(
        "--lease-seconds",
        type=float,
        default=LEASE_SECONDS,
        metavar="S",
        help=f"silence after which another backbone leads (default: {LEASE_SECONDS:.0f})",
    )

    token = verb("token", "make a credential for one name: a file to send to a volunteer")
    add_run(token)
    token.add_argument("--name", required=True, help="name of the volunteer, or of the worker")
    token.add_argument(
        "--backbone",
        action="store_true",
        help="for `start --token` on a machine without the run's key",
    )
    token.add_argument("--days", type=float, default=7.0, help="days until it expires (default: 7)")
    token.add_argument("--out", type=output_path, metavar="FILE", help="default: NAME.pass")

    revoke = verb("revoke", "revoke all credentials of a name")
    revoke.add_argument("name", metavar="NAME")
    add_run(revoke)

    undo = verb("undo", "go back to an earlier step of a path, before a lie")
    add_run(undo)
    undo.add_argument("--to", type=int, required=True, metavar="STEP", help="steps to keep")
    undo.add_argument("--path", type=int, metavar="I", help="needed if the run has several")
    add_run(verb("verify", "take a night's steps again on this machine, and find a lie in them"))
    swarm_join.add_arguments(verb("join", "lend this machine to a swarm; Ctrl-C leaves cleanly"))
    swarm_watch.add_arguments(verb("watch", "show how the run is, and what each volunteer did"))


def run(options: argparse.Namespace) -> int:
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "start": _start,
        "token": _token,
        "revoke": _revoke,
        "verify": _verify,
        "undo": _undo,
        "join": swarm_join.run,
        "watch": swarm_watch.run,
    }
    if importlib.util.find_spec("cryptography") is None:
        raise ExtraMissing(feature="`dipaco swarm`", package="cryptography", extra="volunteer")
    return verbs[options.swarm_verb](options)


# --- at the run ----------------------------------------------------------------------------------


def _start(options: argparse.Namespace) -> int:
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()

    from dipaco.overrides import load_config
    from dipaco.swarm.network.addresses import check_to_listen

    name = name_of(options.name)
    check_lease(options.lease_seconds)
    check_between("--save-seconds", options.save_seconds, 1, DAY_SECONDS)
    config = load_config(options.config, options.overrides)
    path = _path_of(options.path, config.num_paths)
    check_to_listen(options.listen, options.announce)
    rows, batch = options.block_rows, config.inner.batch_size
    if rows is not None and not 1 <= rows <= batch:
        expected = f"1 to {batch} (`inner.batch_size`)"
        raise BadSetting(name="--block-rows", value=rows, expected=expected)
    if options.local_steps != 1:
        _check_local_steps(options, config.inner.steps)
    if config.inner.freeze_absent_tokens:
        raise SettingsDisagree(
            problem="`inner.freeze_absent_tokens` is on, and volunteers inside a path are not told "
            "which tokens its shard has. Train such a run with `dipaco worker`"
        )
    if config.outer.delay:
        raise SettingsDisagree(
            problem=f"`outer.delay` is {config.outer.delay}, and volunteers inside a path begin a "
            "phase with its modules; expected 0. Train such a run with `dipaco worker`"
        )

    from dipaco.caches import cache_folder
    from dipaco.config import MODULAR
    from dipaco.launch.equal_bits import ask_for_equal_bits
    from dipaco.library.console import ConsoleReporter, print_results
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.swarm.network.messages import RUN_FAILED, RUN_OVER
    from dipaco.swarm.roles.backbone import Backbone, BackbonePlace
    from dipaco.workers.errors import TaskFailed
    from dipaco.workers.process import begun_run, work
    from dipaco.workers.registration import wait_until_name_is_free
    from dipaco.workers.runners import Volunteers

    ask_for_equal_bits()
    use_compilation_cache(cache_folder() / "compiled")
    with begun_run(options.run, config, options.database) as (opened, is_new):
        wait_until_name_is_free(opened.ledger.members, name, say)
        backbone = Backbone(
            opened.open_ledger,
            BackbonePlace(MODULAR, path, name),
            _settings(opened, options),
            _backbone_credential(opened, options, path),
            listen=options.listen,
            announce=options.announce,
            say=say,
            save_seconds=options.save_seconds,
            num_steps=opened.plan.arm(MODULAR).total_steps,
        )
        backbone.start()
        end = ""
        try:
            say(f"dipaco swarm join {backbone.address} --token FILE")
            with ConsoleReporter(opened) as console:
                console.greet(is_new=is_new)
                is_finished = work(
                    opened,
                    name,
                    console,
                    lease_seconds=options.lease_seconds,
                    runner=Volunteers(opened, backbone.run_phase),
                    on_ctrl_c=True,
                )
            if not is_finished:
                return stopped(opened.ledger)
            end = RUN_OVER
            print_results(opened)
        except TaskFailed:
            end = RUN_FAILED
            raise
        finally:
            backbone.close(end)
    return 0


def _backbone_credential(opened: "Run", options: argparse.Namespace, path: int) -> "Credential":
    """The credential that was given, or a new one where the run's signing key is.

    Raises:
      BadCredential, NoSigningKey.
    """
    from dipaco.swarm.errors import BadCredential
    from dipaco.swarm.network.credentials import BACKBONE, load_credential

    if options.token is None:
        name = f"{OWN_PREFIX}{path}"
        credential = _authority(opened).issue(name, BACKBONE, time.time(), BACKBONE_DAYS)
        _allow(opened, credential)
        return credential
    credential = load_credential(options.token)
    if credential.certificate.role != BACKBONE:
        remedy = "Have one made by `dipaco swarm token --backbone`."
        raise BadCredential(problem=f"{options.token} is a volunteer's", remedy=remedy)
    return credential


def _path_of(given: int | None, num_paths: int) -> int:
    if given is None:
        if num_paths > 1:
            raise PathNeeded(paths=num_paths, last=num_paths - 1)
        return 0
    if not 0 <= given < num_paths:
        raise NoSuchPath(path=given, last=num_paths - 1)
    return given


def _settings(opened: "Run", options: argparse.Namespace) -> Any:
    from dipaco.config import MODULAR
    from dipaco.swarm.training.compute import GroupSettings

    if "path_loss" in opened.rules:
        problem = f"the path loss is `{opened.rules['path_loss'].name}`, and peers have only ours"
        raise SettingsDisagree(problem=problem)
    config = opened.config
    return GroupSettings(
        model=config.model,
        inner=config.inner,
        length=config.data.length,
        block_rows=options.block_rows or _default_block_rows(options, config.inner.batch_size),
        codec=options.codec,
        local_steps=options.local_steps,
        schedule_steps=opened.plan.arm(MODULAR).total_steps,
    )


def _default_block_rows(options: argparse.Namespace, batch_size: int) -> int:
    """The batch of local steps is a block, and small batches make poor steps."""
    return max(1, batch_size // (32 if options.local_steps == 1 else 8))


def _check_local_steps(options: argparse.Namespace, steps: int) -> None:
    """Raises `BadSetting`, `SettingsDisagree`."""
    if options.local_steps < 1 or steps % options.local_steps:
        expected = f"a divisor of the {steps} steps of a phase (`inner.steps`)"
        raise BadSetting(name="--local-steps", value=options.local_steps, expected=expected)
    if options.codec != "none":
        problem = "the optimiser state that `--local-steps` averages does not bear `--codec int8`"
        raise SettingsDisagree(problem=problem)


def _token(options: argparse.Namespace) -> int:
    from dipaco.runs.version import write_wheel
    from dipaco.swarm.network.credentials import BACKBONE, VOLUNTEER, save_credential

    if options.name.startswith(OWN_PREFIX):
        expected = f"a volunteer's name; names with `{OWN_PREFIX}` are the run's own"
        raise BadSetting(name="--name", value=options.name, expected=expected)
    file = options.out or Path(f"{options.name}.pass")
    with _begun(options) as opened:
        prefix, role = (OWN_PREFIX, BACKBONE) if options.backbone else ("", VOLUNTEER)
        credential = _authority(opened).issue(
            f"{prefix}{options.name}", role, time.time(), options.days
        )
        save_credential(credential, file)
        try:
            _allow(opened, credential)
        except BaseException:
            file.unlink(missing_ok=True)  # no backbone would accept it
            raise
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(credential.certificate.not_after))
        print(f"{file}: {options.name} may take part until {until}. Keep it secret, as a key.")
        addresses = opened.ledger.swarms.addresses()
    if options.backbone:
        return 0
    wheel = write_wheel(file.parent)
    print(f"{wheel}: this version of dipaco. Send both; the other machine needs uv, and no git:")
    for address in addresses or ("ADDRESS",):
        run = f"uvx --from ./{wheel.name} --with cryptography dipaco"
        print(f"{run} swarm join {address} --token {shlex.quote(file.name)}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    with _begun(options) as opened:
        swarms = opened.ledger.swarms
        if not swarms.revoke(options.name):
            known = sorted({one.name for one in swarms.credentials() if one.role == "volunteer"})
            raise NoSuchCredential(name=options.name, known=", ".join(known) or "no name")
    print(f"All credentials of {options.name} are revoked.")
    return 0


def _undo(options: argparse.Namespace) -> int:
    from dipaco.workers.rollback import undo_steps

    with _begun(options) as opened:
        path = _path_of(options.path, opened.config.num_paths)
        undo_steps(opened, path, options.to)
    print(f"Path {path} is at step {options.to} again. `dipaco swarm start` goes on from there.")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from dipaco.caches import cache_folder
    from dipaco.launch.equal_bits import ask_for_equal_bits
    from dipaco.runs.programs import use_compilation_cache

    ask_for_equal_bits()
    use_compilation_cache(cache_folder() / "compiled")
    with _begun(options) as opened:
        return swarm_verify.run(options, opened)


@contextlib.contextmanager
def _begun(options: argparse.Namespace) -> "Generator[Run]":
    """The run. Raises `NoRunToLead` where there is none."""
    from dipaco.runs.errors import NoSuchRun
    from dipaco.runs.opening import reading

    try:
        with reading(options.run) as opened:
            yield opened
    except NoSuchRun as error:
        raise NoRunToLead(**error.values) from error


def _authority(opened: "Run") -> "Authority":
    """Issues credentials for this run. Its key is a file of the person who began the run. The
    ledger has the key's fingerprint alone.

    Raises:
      NoSigningKey: the key is elsewhere.
    """
    from dipaco.swarm.errors import NoSigningKey
    from dipaco.swarm.network.credentials import authority_in, keys_folder

    file, meta = keys_folder() / f"{opened.identity}.key", opened.ledger.meta
    if file.exists() or meta.get("swarm_authority") is None:
        authority = authority_in(file)
        if meta.remember("swarm_authority", authority.fingerprint) == authority.fingerprint:
            return authority
    raise NoSigningKey(folder=opened.layout.root, file=file)


def _allow(opened: "Run", credential: "Credential") -> None:
    """Puts a credential on the list of accepted ones."""
    certificate = credential.certificate
    opened.ledger.swarms.issue(
        certificate.serial, certificate.name, certificate.role, certificate.not_after
    )
