"""`dipaco swarm watch`: how the run is and who helps, for people who lend a machine."""

import argparse
import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import DAY_SECONDS, check_between

if TYPE_CHECKING:
    from dipaco.swarm.network.messages import RunOverview

say = functools.partial(print, flush=True)

MOST_ROWS = 20  # volunteers that are named, and oneself


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="as `swarm start` printed it")
    parser.add_argument("--token", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--every", type=float, metavar="S", help="print it again every S seconds (default: once)"
    )


def run(options: argparse.Namespace) -> int:
    if options.every is not None:
        check_between("--every", options.every, 1, DAY_SECONDS)
    return asyncio.run(_watch(options.address, options.token, options.every))


async def _watch(address: str, token: Path, every_seconds: float | None) -> int:
    from dipaco.swarm.errors import SwarmUnreachable, TlsRefused
    from dipaco.swarm.network.credentials import load_credential, printable
    from dipaco.swarm.roles.session import ask_about_run, wire_to

    credential = load_credential(token)
    wire = await wire_to(address, credential)
    try:
        while True:
            try:
                overview = await ask_about_run(wire, address)
                say("\n".join(lines_of(overview, credential.certificate.name)))
            except TlsRefused:
                raise  # the same machine would answer again
            except (OSError, TimeoutError) as error:
                problem = printable(str(error)) or type(error).__name__
                if every_seconds is None:
                    raise SwarmUnreachable(addresses=address, problem=problem) from error
                say(f"no answer from {address} ({problem})")
            if every_seconds is None:
                return 0
            await asyncio.sleep(every_seconds)
            say("")
    finally:
        assert wire.transport is not None
        await wire.transport.close()


def lines_of(overview: "RunOverview", own_name: str) -> list[str]:
    """The overview in lines for a person."""
    from dipaco.swarm.network.credentials import printable

    of_all = f" of {overview.steps:,}" if overview.steps else ""
    lines = []
    for one in overview.paths:
        loss = "" if one.loss is None else f", loss {one.loss:.3f}"
        volunteers = f"{one.volunteers} volunteer{'' if one.volunteers == 1 else 's'}"
        lines.append(
            f"path {one.path}: step {one.step:,}{of_all}{loss}; {volunteers}, "
            f"{one.samples_per_second:.1f} samples/s"
        )
    if not overview.helpers:
        return [*lines, "no volunteer has computed anything yet"]
    lines.append("volunteers, by samples in all sessions:")
    for number, one in enumerate(overview.helpers):
        is_own = one.name == own_name
        if number < MOST_ROWS or is_own:
            now = "not here"
            if one.is_here:
                speed = f"{one.samples_per_second:.1f} samples/s"
                now = f"{speed}, {printable(one.does) or 'here'}"
            lines.append(
                f"{one.place:4}  {printable(one.name):20} {one.samples:12,} {one.share:6.1%}"
                f"  {now}{', you' if is_own else ''}"
            )
    if len(overview.helpers) > MOST_ROWS:
        lines.append(f"      {len(overview.helpers)} volunteers in all")
    return lines
