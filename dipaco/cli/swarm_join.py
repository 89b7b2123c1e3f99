"""`dipaco swarm join`: a volunteer's command line, and the share of a machine to lend."""

import argparse
import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from dipaco.cli.interrupts import EXIT_INTERRUPTED
from dipaco.cli.options import check_between

say = functools.partial(print, flush=True)

MIN_MEGABITS, MAX_MEGABITS = 0.1, 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="as `swarm start` printed it")
    parser.add_argument("--token", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--path", type=int, metavar="I", help="serve this one (default: as it is needed)"
    )
    parser.add_argument("--megabits", type=float, metavar="N", help="most megabits each way")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="processors that it may use (default: all)"
    )
    parser.add_argument(
        "--device", metavar="DEVICE", help="cpu, gpu, or one of several: gpu:1 (default: best)"
    )
    parser.add_argument("--client", action="store_true", help="behind a firewall: only dial out")


def run(options: argparse.Namespace) -> int:
    from dipaco.launch.devices import lend_device, lend_processors

    check_between("--megabits", options.megabits, MIN_MEGABITS, MAX_MEGABITS)
    if options.threads is not None:
        lend_processors(options.threads)  # before any library starts a thread

    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()

    from dipaco.swarm.network.addresses import check_to_join
    from dipaco.swarm.network.credentials import check_not_expired, load_credential

    credential = load_credential(options.token)
    check_not_expired(credential)
    check_to_join(options.address)
    if options.device is not None:
        lend_device(options.device)

    from dipaco.caches import cache_folder
    from dipaco.runs.programs import use_compilation_cache

    use_compilation_cache(cache_folder() / "compiled")

    from dipaco.swarm.roles.session import SessionConfig, run_session

    config = SessionConfig(
        address=options.address,
        listens=not options.client,
        bytes_per_second=options.megabits * 125_000.0 if options.megabits else None,
        path=options.path,
    )

    def session(stop: asyncio.Event) -> Awaitable[None]:
        return run_session(config, credential, stop, say)

    asyncio.run(_until_asked_to_leave(session))
    return 0


async def _until_asked_to_leave(session: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Ctrl-C and SIGTERM ask to leave in order. A second Ctrl-C ends the process: an exception
    would wait for the threads that compute a block or compile a program.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def ask_to_leave() -> None:
        say("leaving in order. Ctrl-C again leaves at once")
        stop.set()
        loop.add_signal_handler(signal.SIGINT, leave_at_once)

    def leave_at_once() -> None:
        say("left at once: others compute what was not handed in")
        os._exit(EXIT_INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask_to_leave)
    await session(stop)
