"""`dipaco swarm token` and `revoke`: the credentials of those who take part in a swarm."""

import argparse
import contextlib
import shlex
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.errors import NoRunToLead, NoSuchCredential
from dipaco.cli.options import add_run, output_path
from dipaco.errors import BadSetting

if TYPE_CHECKING:
    from dipaco.runs.run import Run
    from dipaco.swarm.network.credentials import Authority, Credential

BACKBONE_DAYS = 3650.0
OWN_PREFIX = "backbone-"  # and the path: the names on the credentials of backbones


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--name", required=True, help="name of the volunteer, or of the worker")
    parser.add_argument(
        "--backbone",
        action="store_true",
        help="for `start --token` on a machine without the run's key",
    )
    parser.add_argument(
        "--days", type=float, default=7.0, help="days until it expires (default: 7)"
    )
    parser.add_argument("--out", type=output_path, metavar="FILE", help="default: NAME.pass")


def add_revoke_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    add_run(parser)


def token(options: argparse.Namespace) -> int:
    from dipaco.runs.version import write_wheel
    from dipaco.swarm.network.credentials import BACKBONE, VOLUNTEER, save_credential

    if options.name.startswith(OWN_PREFIX):
        expected = f"a volunteer's name; names with `{OWN_PREFIX}` are the run's own"
        raise BadSetting(name="--name", value=options.name, expected=expected)
    file = options.out or Path(f"{options.name}.pass")
    with run_to_lead(options) as opened:
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


def revoke(options: argparse.Namespace) -> int:
    with run_to_lead(options) as opened:
        swarms = opened.ledger.swarms
        if not swarms.revoke(options.name):
            known = sorted({one.name for one in swarms.credentials() if one.role == "volunteer"})
            raise NoSuchCredential(name=options.name, known=", ".join(known) or "no name")
    print(f"All credentials of {options.name} are revoked.")
    return 0


@contextlib.contextmanager
def run_to_lead(options: argparse.Namespace) -> "Generator[Run]":
    """The run. Raises `NoRunToLead` where there is none."""
    from dipaco.runs.errors import NoSuchRun
    from dipaco.runs.opening import reading

    try:
        with reading(options.run) as opened:
            yield opened
    except NoSuchRun as error:
        raise NoRunToLead(**error.values) from error


def backbone_credential(opened: "Run", given: Path | None, path: int) -> "Credential":
    """The credential that was given, or a new one where the run's signing key is.

    Raises:
      BadCredential, NoSigningKey.
    """
    from dipaco.swarm.errors import BadCredential
    from dipaco.swarm.network.credentials import BACKBONE, load_credential

    if given is None:
        name = f"{OWN_PREFIX}{path}"
        credential = _authority(opened).issue(name, BACKBONE, time.time(), BACKBONE_DAYS)
        _allow(opened, credential)
        return credential
    credential = load_credential(given)
    if credential.certificate.role != BACKBONE:
        remedy = "Have one made by `dipaco swarm token --backbone`."
        raise BadCredential(problem=f"{given} is a volunteer's", remedy=remedy)
    return credential


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
