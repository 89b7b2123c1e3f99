"""Serve a run over HTTP: OpenAI's completions, routed, and a page to try it at /.

  dipaco serve --run runs/quickstart --port 8000
  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "quickstart", "prompt": "And God said", "max_tokens": 32, "stream": true}'

The router sends each prompt to one path, by its first tokens; a path is read into memory when it is
first needed. A run that is still training is followed: requests finish on the release they began
in, the next get the newer one. SIGTERM or Ctrl-C finishes running requests. Needs the extra
`serve`.

  dipaco serve --run s3://BUCKET/big --paths 0-1,16-17
      a cell: these paths only, for requests that name one as the model (`big/path_0016`)
  dipaco serve --run s3://BUCKET/big --upstream cells.yaml
      a router before cells, or before any OpenAI-compatible servers: it chooses the path of a
      request and sends it on, to another server if one is lost before it answers. The file, YAML
      or JSON, has the servers of each path: `0-1,16-17: {url: "http://cell-0:8000"}`
"""

import argparse
import asyncio
import contextlib
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.dashboard import add_dashboard, beside, check_dashboard
from dipaco.cli.options import (
    DAY_SECONDS,
    LAST_PORT,
    add_release,
    add_rule,
    check_between,
    find_release,
    option_of,
    read_keys,
)
from dipaco.errors import BadSetting

if TYPE_CHECKING:
    from dipaco.runs.run import Run
    from dipaco.serving.http.server import TlsFiles
    from dipaco.serving.service import Service
    from dipaco.serving.upstreams import Upstreams

HELP = "serve a run over HTTP"

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    where = parser.add_argument_group("where")
    where.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    where.add_argument("--port", type=int, default=8000, help="0 = any free port (8000)")
    where.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="one key a line; requests must send one"
    )
    where.add_argument(
        "--body-bytes", default="4M", metavar="SIZE", help="largest body of a request (4M)"
    )
    where.add_argument(
        "--connections",
        type=int,
        metavar="N",
        help="connections open at once (as many as the limit of open files allows)",
    )
    where.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="speak HTTPS with this certificate (PEM)"
    )
    where.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, if it is elsewhere")
    where.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a site whose pages may ask this server, * = all; may be given several times",
    )
    where.add_argument(
        "--access-log", action="store_true", help="write a line for each request, with its id"
    )
    where.add_argument(
        "--lenient",
        action="store_true",
        help="ignore unknown fields of requests, and log each once",
    )
    add_dashboard(where)
    how = parser.add_argument_group("how")
    how.add_argument(
        "--path-bytes",
        metavar="SIZE",
        help="memory for all paths, as 500M or 8G (what the rows leave free)",
    )
    how.add_argument("--rows", type=int, default=64, help="requests decoded at once (64)")
    how.add_argument("--rows-per-path", type=int, metavar="N", help="rows of one path (all)")
    how.add_argument("--rows-per-client", type=int, metavar="N", help="rows of one client (all)")
    how.add_argument("--waiting", type=int, default=256, help="requests that may wait (256)")
    how.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="Jinja template (the tokenizer's own)",
    )
    add_rule(how)
    how.add_argument(
        "--reroute-every",
        type=int,
        metavar="W",
        help="choose the path again after every W new tokens; a change prefills the text again",
    )
    how.add_argument(
        "--drain-seconds", type=float, default=60.0, help="time to finish after SIGTERM (60)"
    )

    many = parser.add_argument_group("on many machines")
    many.add_argument(
        "--paths", metavar="LIST", help="a cell: serve these paths only, such as 0-1,16-17"
    )
    many.add_argument(
        "--upstream",
        type=Path,
        metavar="FILE",
        help="a router: send requests on to the servers that FILE has for each path",
    )


def run(options: argparse.Namespace) -> int:
    # NumPy's products here are of a few prompts. Threads of them would spin beside XLA's.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dipaco.errors import needs_extra
    from dipaco.runs.opening import reading

    with needs_extra("serve", feature="`dipaco serve`"):
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401

    from dipaco.files import raise_file_limit
    from dipaco.serving.http.chat_template import chat_of_run
    from dipaco.serving.http.server import max_connections

    counts = ("rows", "rows_per_path", "rows_per_client", "waiting", "connections")
    _at_least_one(options, *counts, "reroute_every")
    if options.upstream is not None:
        local = ("paths", "path_bytes", "rows_per_path", "rows_per_client")
        _without(options, "upstream", *local, "reroute_every")
    if options.paths is not None:
        _without(options, "paths", "rule", "reroute_every")
    check_between("--port", options.port, 0, LAST_PORT)
    check_dashboard(options)
    check_between("--drain-seconds", options.drain_seconds, 0, DAY_SECONDS)
    raise_file_limit()
    max_connections(options.connections)  # raises if it is too many
    keys = read_keys(options.api_key_file)
    tls = _tls(options)
    max_body_bytes = _bytes("--body-bytes", options.body_bytes)
    path_bytes = _bytes("--path-bytes", options.path_bytes) if options.path_bytes else None
    with reading(options.run) as opened:  # a bad option fails before anything slow
        find_release(opened, options)
        paths, upstreams = _paths(opened, options), _upstreams(opened, options)
        chat = chat_of_run(opened, options.chat_template)

    from dipaco.observe.progress import CompileProgress
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.serving.decoding.decode import LoopLimits
    from dipaco.serving.http.app import HttpSettings, make_app
    from dipaco.serving.http.metrics import Metrics
    from dipaco.serving.http.server import answering_that_it_starts, listen, serve
    from dipaco.serving.service import Service, ServiceSettings, print_notice
    from dipaco.serving.warm_up import WarmUp

    http = HttpSettings(
        api_keys=keys,
        max_body_bytes=max_body_bytes,
        chat=chat,
        cors_origins=tuple(options.cors_origin),
        say=print_notice if options.access_log else None,
        upstreams=upstreams,
        is_lenient=options.lenient,
    )
    settings = ServiceSettings(
        arm=options.arm,
        phase=options.phase,
        path_bytes=path_bytes,
        rule=options.rule,
        reroute_every=options.reroute_every,
        limits=LoopLimits(
            rows=options.rows,
            rows_per_path=min(options.rows, options.rows_per_path or options.rows),
            rows_per_client=options.rows_per_client,
            waiting=options.waiting,
        ),
        paths=paths,
    )
    if upstreams is not None:
        asyncio.run(upstreams.check(options.upstream))
    use_compilation_cache()
    metrics = Metrics()
    listening = listen(options.host, options.port)
    with listening, contextlib.ExitStack() as stack:
        with answering_that_it_starts(listening, tls):
            service = Service(
                options.run, settings, on_cold=metrics.cold_path.observe, upstreams=upstreams
            )
            stack.enter_context(service)
            with CompileProgress() as progress:
                service.start(
                    WarmUp(
                        progress.show,
                        is_brief=upstreams is None,
                        when_done=functools.partial(_all_compiled, service),
                    )
                )
        release = service.releases.current.release
        (host, port), scheme = listening.getsockname()[:2], "https" if tls.certificate else "http"
        where = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        service.say(
            f"serving `{service.name}` ({release.arm}, phase {release.phase}, "
            f"{len(release.paths)} paths) at {where}"
        )
        app = make_app(service, metrics, http)
        cut_off = functools.partial(service.loop.stop, drain_seconds=0.0)
        with beside(str(options.run), options.dashboard):
            serve(
                app,
                listening,
                options.drain_seconds,
                service.say,
                cut_off,
                options.connections,
                host=options.host,
                tls=tls,
            )
        service.say("stopped")
    return 0


def _all_compiled(service: "Service") -> None:
    from dipaco.serving.warm_up import keep_what_there_is

    keep_what_there_is()
    service.say("compiled for requests of any length")


def _tls(options: argparse.Namespace) -> "TlsFiles":
    """Raises `BadSetting`: the files are no certificate and key."""
    import ssl

    from dipaco.serving.http.server import TlsFiles

    files = TlsFiles(options.tls_cert, options.tls_key)
    if files.certificate is None:
        if files.key is not None:
            raise BadSetting(name="--tls-key", value=files.key, expected="--tls-cert beside it")
        return files
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            files.certificate, files.key
        )
    except (OSError, ssl.SSLError) as error:
        hint = f" ({error})"
        expected = "a certificate in PEM, and its key there or in --tls-key"
        raise BadSetting(
            name="--tls-cert", value=files.certificate, expected=expected, hint=hint
        ) from error
    return files


def _paths(opened: "Run", options: argparse.Namespace) -> tuple[int, ...] | None:
    """The paths of a cell. None = all. Raises `BadSetting`."""
    from dipaco.topology.cells import paths_in

    if options.paths is None:
        return None
    last = opened.plan.arm(options.arm).topology.num_paths - 1
    try:
        paths = paths_in(options.paths)
    except ValueError:
        paths = ()
    if not paths or paths[-1] > last:
        expected = f"paths from 0 to {last}, such as 0-1,16-17"
        raise BadSetting(name="--paths", value=options.paths, expected=expected)
    return paths


def _upstreams(opened: "Run", options: argparse.Namespace) -> "Upstreams | None":
    """The servers before which this one stands. Raises `BadUpstreams`."""
    if options.upstream is None:
        return None
    from dipaco.errors import needs_extra

    with needs_extra("serve", package="aiohttp", feature="`--upstream`"):
        import aiohttp  # noqa: F401

    from dipaco.launch.devices import use_cpu_only
    from dipaco.serving.service import print_notice
    from dipaco.serving.upstreams import Upstreams, read_router, read_targets

    if not os.environ.get("JAX_PLATFORMS"):
        use_cpu_only()  # Accelerators are the upstreams', unless this process is told to take one.
    exported = read_router(options.upstream, opened, options.arm, options.phase)
    if exported is not None:
        options.phase, options.rule = exported.phase, options.rule or exported.rule
    num_paths = opened.plan.arm(options.arm).topology.num_paths
    targets = read_targets(options.upstream, opened.config.name, num_paths)
    return Upstreams(targets, options.waiting, print_notice)


def _at_least_one(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if (value := getattr(options, name)) is not None and value < 1:
            raise BadSetting(name=option_of(name), value=value, expected="1 or more")


def _without(options: argparse.Namespace, beside: str, *names: str) -> None:
    for name in names:
        if (value := getattr(options, name)) is not None:
            expected = f"left out beside `{option_of(beside)}`"
            raise BadSetting(name=option_of(name), value=value, expected=expected)


def _bytes(name: str, text: str) -> int:
    """`500M` -> bytes. Raises `BadSetting`."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        size = int(float(number) * UNITS.get(unit, 1 if not unit else 0))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise BadSetting(name=name, value=text, expected="a size as 500M or 8G")
    return size
