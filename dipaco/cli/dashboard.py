"""The flight recorder of a run: a page with its grid of modules, its workers, curves and texts, now
and at any moment since it began.

  dipaco dashboard --run runs/quickstart                       at http://localhost:8080/
  dipaco dashboard --run s3://BUCKET/big --port 0              any free port
  dipaco dashboard --run runs/quickstart --export page.html    one file, to be opened from disk
  dipaco dashboard --run SWEEP                                 its runs, each with its page

Reads the run and writes nothing to it, while it goes on or after. One reader serves any number of
open pages, and asks nothing while none is open. Needs the extra `serve`, but for `--export`.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import LAST_PORT, add_run, check_between, output_path, read_keys

if TYPE_CHECKING:
    import socket

    from dipaco.dashboard.sweep import SweepWatcher
    from dipaco.dashboard.watcher import Watcher

HELP = "show a run on a page, and replay it"
END_SECONDS = 10.0  # for it to end when the run does
DRAIN_SECONDS = 2.0  # time for open pages to get their last data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--export",
        type=output_path,
        metavar="FILE",
        help="write the page with everything in it, and end",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="0 = any free port (8080)")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="one key a line; pages must send one"
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.dashboard.sweep import SweepWatcher, sweep_at
    from dipaco.launch.devices import use_cpu_only
    from dipaco.runs.opening import reading

    use_cpu_only()
    sweep = sweep_at(options.run)
    if options.export is not None:
        from rich.filesize import decimal

        from dipaco.dashboard.page import export

        if sweep is not None:
            size = export(SweepWatcher(sweep), options.export)
        else:
            with reading(options.run) as opened:
                size = export(opened, options.export)
        print(f"{options.export}: {decimal(size)}; it opens from disk, without a server")
        return 0

    check_extra()
    check_between("--port", options.port, 0, LAST_PORT)
    keys = read_keys(options.api_key_file)
    if sweep is None:
        with reading(options.run):  # a wrong address fails before anything is served
            pass

    from dipaco.dashboard.watcher import Watcher
    from dipaco.files import raise_file_limit
    from dipaco.serving.http.server import listen

    watcher = Watcher(options.run) if sweep is None else SweepWatcher(sweep)
    raise_file_limit()
    with listen(options.host, options.port) as listening:
        print(f"dashboard of {options.run} at {address_of(listening)}", flush=True)
        watcher.start()
        try:
            _serve(watcher, listening, keys, options.host)
        finally:
            watcher.stop()
    return 0


def _serve(
    watcher: "Watcher | SweepWatcher", listening: "socket.socket", keys: tuple[str, ...], host: str
) -> None:
    from dipaco.dashboard.server import make_app
    from dipaco.serving.http.server import serve

    app = make_app(watcher, keys)
    serve(app, listening, DRAIN_SECONDS, lambda _: watcher.finish(), lambda: None, host=host)


def add_dashboard(parser: argparse._ActionsContainer) -> None:
    """`--dashboard` of verbs that have a page of the run beside them."""
    parser.add_argument(
        "--dashboard",
        type=int,
        nargs="?",
        const=8080,
        metavar="PORT",
        help="show the run on a page at 127.0.0.1 meanwhile (8080; extra `serve`)",
    )


def check_dashboard(options: argparse.Namespace) -> None:
    """Raises `BadSetting`, `ExtraMissing`."""
    if options.dashboard is not None:
        check_between("--dashboard", options.dashboard, 0, LAST_PORT)
        check_extra()


@contextlib.contextmanager
def beside(run: str, port: int | None) -> Generator[None]:
    """The dashboard of a run in another process, which prints its address and ends with this one.
    No process if `port` is None. If the port is taken, it prints so, and the run goes on without.
    """
    if port is None:
        yield
        return
    dipaco = [sys.executable, "-P", "-m", "dipaco.cli.main"]
    command = [*dipaco, "dashboard", "--run", run, "--port", str(port)]
    dies_with_us = [sys.executable, "-P", "-m", "dipaco.launch.parent_death", str(os.getpid())]
    process = subprocess.Popen(
        [*dies_with_us, *command],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        start_new_session=True,  # Ctrl-C reaches the run, which ends it
    )
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()
        process.wait()


def check_extra() -> None:
    """Raises `ExtraMissing` where there is no HTTP server."""
    from dipaco.errors import needs_extra

    with needs_extra("serve", feature="`dipaco dashboard`"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401


def address_of(listening: "socket.socket") -> str:
    """`http://127.0.0.1:8080/`."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
