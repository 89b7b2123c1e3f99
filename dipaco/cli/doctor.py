"""Look at this machine before a run does: what is installed, devices, disk, clock, ports, and
whether the run's folder or bucket and its database can be reached, read, written and listed.

  dipaco doctor
  dipaco doctor --run s3://bucket/run --database postgresql://HOST/runs

Writes one small object where the run would be, makes one empty schema in the database, and removes
both. Ends with exit code 4 if something does not work.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dipaco import stopping
from dipaco.caches import cache_folder
from dipaco.cli.options import LAST_PORT, add_database, add_json, add_run, check_between
from dipaco.errors import EXTRAS, DipacoError, MachineFault
from dipaco.processors import num_processors, processor_model
from dipaco.store.address import Address

HELP = "look at this machine: versions, devices, disk, clock, database, bucket, ports"
COMPUTING = ("jax", "jaxlib", "numpy", "flax", "optax")
PORTS = (8000, 8080)  # `serve` and `dashboard` listen there.
LEAST_FREE_BYTES = 2_000_000_000
PATIENCE_SECONDS = 10.0  # time for a bucket or a database to answer
MOST_SKEW_SECONDS = 5.0  # A worker whose clock is further off writes confusing times.


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    is_good: bool
    says: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, is_required=False)
    add_database(parser)
    parser.add_argument(
        "--port", type=int, nargs="+", default=PORTS, help="ports to listen on (8000 8080)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    for port in options.port:
        check_between("--port", port, 1, LAST_PORT)
    found = list(_findings(options))
    if options.json:
        findings = [each._asdict() for each in found]
        print(json.dumps({"is_good": all(each.is_good for each in found), "findings": findings}))
    else:
        for each in found:
            print(f"{'ok ' if each.is_good else 'BAD'}  {each.name:<9} {each.says}")
    return 0 if all(each.is_good for each in found) else MachineFault.exit_code


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    from dipaco.runs.version import described_version

    computing = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in COMPUTING)
    yield Finding("dipaco", True, f"{described_version()}, Python {platform.python_version()}")
    yield Finding("packages", True, computing)
    absent = {extra for name, extra in EXTRAS.items() if importlib.util.find_spec(name) is None}
    yield Finding("extras", True, f"absent: {', '.join(sorted(absent)) or 'none'}")
    yield _devices()
    place = options.run.folder if options.run is not None else Path()
    for folder in dict.fromkeys((_there(place), _there(cache_folder()))):
        free = shutil.disk_usage(folder).free
        says = f"{free / 1e9:.1f} GB free at {folder}"
        yield Finding("disk", free >= LEAST_FREE_BYTES, says)
    for port in options.port:
        yield _port(port)
    if options.run is not None:
        yield _tried("bucket" if options.run.url else "folder", lambda: _store(options.run))
    if options.database is not None:
        yield _tried("database", lambda: _database(options.database))


def _tried(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        with stopping.patience(PATIENCE_SECONDS):
            return look()
    except (DipacoError, OSError) as error:
        return Finding(name, False, f"{type(error).__name__}: {error}")


def _devices() -> Finding:
    import jax

    try:
        kinds = [device.device_kind for device in jax.devices()]
    except RuntimeError as error:
        return Finding("devices", False, str(error))
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return Finding("devices", True, f"{counted}; {num_processors()} CPUs, {processor_model()}")


def _there(place: Path) -> Path:
    """The nearest folder above that exists."""
    place = place.absolute()
    return next(each for each in (place, *place.parents) if each.is_dir())


def _port(port: int) -> Finding:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return Finding(f"port {port}", True, "free")
    except OSError as error:
        return Finding(f"port {port}", False, f"{error.strerror}: give `--port`, or stop what does")


def _store(address: Address) -> Finding:
    """Writes, reads, lists and deletes one small object."""
    name = f"doctor-{uuid.uuid4().hex}"
    begun = time.monotonic()
    if address.url is not None:
        from dipaco.store.remote import Remote

        remote = Remote(address.url)
        remote.write(f"{name}/object", b"dipaco")
        is_same = remote.read(f"{name}/object") == b"dipaco"
        is_listed = remote.names(name) == [f"{name}/object"]
        remote.delete_folder(name)
        where, skew = address.url, 0.0
    else:
        where = _there(address.folder)
        file = where / name
        file.write_bytes(b"dipaco")
        skew = file.stat().st_mtime - time.time()
        is_same, is_listed = file.read_bytes() == b"dipaco", name in os.listdir(where)
        file.unlink()
    seconds = time.monotonic() - begun
    if not (is_same and is_listed):
        return Finding("store", False, f"{where} does not give back or list what was written")
    says = f"{where} is written, read, listed and deleted from, in {seconds:.2f} s"
    is_late = abs(skew) > MOST_SKEW_SECONDS
    says += f"; its clock is {skew:+.1f} s from this machine's" if is_late else ""
    return Finding("bucket" if address.url else "folder", not is_late, says)


def _database(given: str) -> Finding:
    """Makes the tables of a run in a schema of its own, and drops it."""
    from dipaco.control.database.location import location_of, new_schema
    from dipaco.control.ledger import open_ledger

    place = location_of(Path("ledger.sqlite"), given, new_schema("doctor"))
    begun = time.monotonic()
    with open_ledger(*place) as ledger:
        seconds = time.monotonic() - begun
        try:
            skew = ledger.wall_clock() - time.time()
        finally:
            ledger.drop()
    says = f"{place.name} makes and drops tables, in {seconds:.2f} s; its clock is {skew:+.1f} s"
    return Finding("database", abs(skew) <= MOST_SKEW_SECONDS, f"{says} from this machine's")
