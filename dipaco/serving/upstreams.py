"""Upstreams: OpenAI-compatible servers that answer for the paths of a run, as a file lists them.

    0-63: {url: "http://cell-0:8000"}               # a cell of this run names its paths itself
    64: [{url: "http://a:8000", model: m64}, {url: "http://b:8000", model: m64}]
    65-255: {url: "http://c:8000", model: "mine-{path}", key: SECRET}

JSON will do too. `router: exported/router.json` names the export whose paths they serve, and its
release is routed, however the run goes on. A router stands before them: it chooses the path, and
`http/forward.py` sends the request on. It decodes nothing, so `Upstreams` takes the place of an
engine and of its loop.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import aiohttp
import msgspec

from dipaco.errors import needs_extra, one_line
from dipaco.runs.run import Run
from dipaco.serving.decoding.loop import LoopStats
from dipaco.serving.decoding.request_queue import GenerationRequest, OnItems, Stream
from dipaco.serving.errors import BadUpstreams
from dipaco.serving.models import ServedRelease
from dipaco.serving.path_cache import PathCache
from dipaco.serving.warm_up import WarmUp, WarmUpProgram
from dipaco.topology.cells import listed, paths_in

LOOK_SECONDS = 5.0  # between two looks at an upstream
ANSWER_SECONDS = 5.0  # for its answer to one
# A server that answers no look for so long hangs, even if its kernel is well. Requests to which it
# has begun no answer go to another that does answer. Without another they stay: it may be busy.
HANGING_SECONDS = 15.0  # from the first look, up to `LOOK_SECONDS` after the last answer
# Servers close idle connections, vLLM after 5 s. One that is closed first loses no request.
IDLE_SECONDS = 4.0
CONNECT_SECONDS = 5.0
# A machine that lost its power or its cable closes no connection. After 20 s without a word of its
# kernel it counts as lost, also where an answer takes much longer.
SILENCE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}


class _Given(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One upstream as the file has it."""

    url: str
    model: str | None = None  # its name there, with {path} for the number. None = a cell's
    key: str | None = None  # API key that it asks for


_File = dict[str | int, str | _Given | Annotated[list[_Given], msgspec.Meta(min_length=1)]]


ROUTER = "router"  # the key of a router.json, and no path
NUMBER = re.compile(r"\{path(?::(0?\d?d))?\}")  # stands for a path in the name of a model


class ExportedRouter(msgspec.Struct):
    """The fields of a router.json that are read here."""

    arm: str
    phase: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    release: str
    rule: str


class _ModelName(msgspec.Struct):
    id: str


class _ModelNames(msgspec.Struct):
    data: list[_ModelName]


class Server:
    """An upstream and its known state. It is used in one event loop only."""

    def __init__(self, url: str, key: str | None):
        self.url = url
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.num_open = 0  # requests that it is answering
        self.models: frozenset[str] = frozenset()
        self.problem: str | None = "it was not asked yet"
        self._silent_since: float | None = None  # the first of the looks that it did not answer
        self._waiting: dict[asyncio.Timeout, Sequence[Target]] = {}

    async def look(self, session: aiohttp.ClientSession) -> None:
        """Asks for its models. Afterwards `problem` says whether it has answered."""
        headers = self.headers | {"Accept-Encoding": "identity"}
        timeout, began = aiohttp.ClientTimeout(total=ANSWER_SECONDS), time.monotonic()
        try:
            async with session.get(
                f"{self.url}/v1/models", headers=headers, timeout=timeout
            ) as answer:
                answer.raise_for_status()
                names = msgspec.json.decode(await answer.read(), type=_ModelNames)
            self.models, self.problem = frozenset(each.id for each in names.data), None
            self._silent_since = None
        except TimeoutError as error:
            self.failed(error)
            self._silent_since = self._silent_since or began
            if time.monotonic() - self._silent_since >= HANGING_SECONDS:
                for limit, others in self._waiting.items():
                    if not limit.expired() and any(other.problem is None for other in others):
                        limit.reschedule(0)
        except (aiohttp.ClientError, OSError, ValueError, msgspec.MsgspecError) as error:
            self.failed(error)
            self._silent_since = None

    @contextlib.asynccontextmanager
    async def awaited(self, others: Sequence["Target"]) -> AsyncGenerator[None]:
        """Raises `TimeoutError` if it hangs and one of the others answers."""
        async with asyncio.timeout(None) as limit:
            self._waiting[limit] = others
            try:
                yield
            finally:
                del self._waiting[limit]

    def failed(self, error: Exception) -> None:
        """Gives it the last turn until it answers the next look."""
        self.problem = f"{self.url}: {str(error) or type(error).__name__}"


class Target(NamedTuple):
    """A path under the name that a server has for it."""

    server: Server
    model: str
    is_cell: bool = False  # of this run, as no name is given

    @property
    def problem(self) -> str | None:
        """The known reason why it cannot be asked."""
        server = self.server
        if server.problem is None and self.model not in server.models:
            names = ", ".join(f"`{name}`" for name in sorted(server.models)[:8])
            return f"{server.url} serves {names or 'nothing'} and not `{self.model}`"
        return server.problem


def _read(file: Path) -> _File:
    try:
        content = file.read_bytes()
        if file.suffix == ".json":
            return msgspec.json.decode(content, type=_File)
        with needs_extra("serve", package="pyyaml", feature="a file of upstreams in YAML"):
            import yaml  # msgspec imports it too
        decoded = msgspec.yaml.decode(content, type=_File)
        keys = [key.value for key, _ in yaml.compose(content).value]
        if len(set(keys)) < len(keys):
            twice = max(keys, key=keys.count)
            problem = f"`{twice}` is there twice. Give a path's upstreams as one list: [...]"
            raise BadUpstreams(file=file, problem=problem)
        return decoded
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        problem = f'{one_line(error)}. Its lines are such as `0-63: {{url: "http://HOST:8000"}}`'
        raise BadUpstreams(file=file, problem=problem) from error


def read_router(file: Path, run: Run, arm: str, phase: int | None) -> ExportedRouter | None:
    """The router.json that a file names. Raises `NotAvailable`, and `BadUpstreams`: it is not of
    this run's release, nor of the options `arm` and `phase`.
    """
    if not isinstance(named := _read(file).get(ROUTER), str):
        return None
    try:
        exported = msgspec.json.decode((file.parent / named).read_bytes(), type=ExportedRouter)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        problem = f"its router {named}: {one_line(error)}"
        raise BadUpstreams(file=file, problem=problem) from error
    of = f"its router {named} is of `{exported.arm}` at phase {exported.phase}"
    if (exported.arm, exported.phase) != (arm, exported.phase if phase is None else phase):
        raise BadUpstreams(file=file, problem=f"{of}, and `--arm` or `--phase` is another")
    digest = run.ledger.facts.release(exported.arm, exported.phase).digest
    if exported.release != digest:
        problem = f"{of}, release {exported.release}, and this run has {digest} there"
        raise BadUpstreams(file=file, problem=f"{problem}. Export it again")
    return exported


def read_targets(file: Path, name: str, num_paths: int) -> dict[int, list[Target]]:
    """The targets of every path of a model. Raises `BadUpstreams`."""

    def refuse(problem: object) -> NoReturn:
        raise BadUpstreams(file=file, problem=problem)

    servers: dict[tuple[str, str | None], Server] = {}
    targets: dict[int, list[Target]] = {path: [] for path in range(num_paths)}
    for key, value in _read(file).items():
        if isinstance(value, str):
            if key == ROUTER:
                continue
            refuse(f"`{key}` has `{value}`, and a path has {{url: http://HOST:8000}}")
        try:
            paths = paths_in(str(key))
        except ValueError as error:
            refuse(error)
        for path in paths:
            if path not in targets:
                refuse(f"there is no path {path}, the last is {num_paths - 1}")
            for each in value if isinstance(value, list) else [value]:
                url = each.url.rstrip("/").removesuffix("/v1")
                if not _is_address(url):
                    refuse(f"`{each.url}` is no address such as http://HOST:8000")
                if not (each.key or "").isprintable():
                    refuse(f"a key has characters that no header may have: {each.key!a}")
                model = _model_of(path, each.model or "")
                if "{" in model or "}" in model:
                    refuse(f"`{each.model}` is no name of a model such as mine-{{path}}")
                model = model or f"{name}/path_{path:04d}"
                server = servers.setdefault((url, each.key), Server(url, each.key))
                targets[path].append(Target(server, model, not each.model))
    if without := [path for path, of_path in targets.items() if not of_path]:
        refuse(f"paths {listed(without)} have none")
    return targets


def _model_of(path: int, name: str) -> str:
    return NUMBER.sub(lambda found: format(path, found[1] or ""), name)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # Raises for one that is no port.
    except ValueError:
        return False
    is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_http and has_port and not re.search(r"[\s?#]", url)


class Upstreams:
    """All upstreams of a router: an engine that decodes nothing. Each has so many places."""

    is_alive = True

    def __init__(
        self, targets: Mapping[int, Sequence[Target]], places: int, say: Callable[[str], object]
    ):
        self._targets, self._say = targets, say
        self.servers = list(
            dict.fromkeys(each.server for of_path in targets.values() for each in of_path)
        )
        self.cache, self.loop = PathCache(lambda receipt: {}, 0), self  # never asked for a path
        self.capacity = places * len(self.servers)
        self._sessions: tuple[aiohttp.ClientSession, ...] = ()  # for whole answers, for streams
        self.waiting: set[asyncio.Task[Any]] = set()  # requests whose answers have not begun
        self._running: asyncio.AbstractEventLoop | None = None

    async def check(self, file: Path) -> None:
        """Asks all of them once. Raises `BadUpstreams`: one lacks a model, or none answers."""
        async with _session() as session:
            await asyncio.gather(*(server.look(session) for server in self.servers))
        for path, targets in self._targets.items():
            for target in targets:
                if target.problem and target.server.problem is None:
                    raise BadUpstreams(file=file, problem=f"path {path}: {target.problem}")
        if (problem := self.problem) is not None:
            raise BadUpstreams(file=file, problem=problem)
        for server in self.servers:
            if server.problem:
                self._say(f"an upstream does not answer: {server.problem}")

    def open(self, is_stream: bool = False) -> aiohttp.ClientSession:
        """The connections to them, in the event loop of the caller. From the first call on they are
        asked again and again, until the loop ends, which closes the connections.
        """
        if not self._sessions:
            self._running = asyncio.get_running_loop()
            self._sessions = _session(), _session(force_close=True)
            self._watching = asyncio.create_task(self._watch_all())
        return self._sessions[is_stream]

    async def _watch_all(self) -> None:
        session, streams = self._sessions
        async with session, streams:
            await asyncio.gather(*(self._watch(server, session) for server in self.servers))

    async def _watch(self, server: Server, session: aiohttp.ClientSession) -> None:
        said = server.problem
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await server.look(session)
            if bool(server.problem) != bool(said):
                problem = f"does not answer: {server.problem}"
                self._say(f"an upstream {problem if server.problem else f'answers: {server.url}'}")
            said = server.problem

    def in_turn(self, path: int, prompt: bytes) -> list[Target]:
        """The targets of a path in the order in which a prompt asks them: those that answer, with
        the fewest requests first. Of equals, the same prompt finds the same one first, which may
        have its beginning cached.
        """

        def rank(target: Target) -> tuple[bool, int, int]:
            server = target.server
            return target.problem is not None, server.num_open, hash((server.url, prompt))

        return sorted(self._targets[path], key=rank)

    @property
    def problem(self) -> str | None:
        """The reason why nothing can be answered: none of them answers."""
        problems = [server.problem for server in self.servers]
        return f"no upstream answers: {problems[0]}" if all(problems) else None

    def stats(self) -> LoopStats:
        up = sum(server.problem is None for server in self.servers)
        return LoopStats(num_replicas=up)

    def start(
        self, served: ServedRelease, warm_up: WarmUp, first: Sequence[WarmUpProgram] = ()
    ) -> None:
        warm_up.run(first)

    def submit(self, request: GenerationRequest, on_items: OnItems | None = None) -> Stream:
        raise AssertionError("requests are sent on, and never decoded here")

    def stop(self, drain_seconds: float) -> None:
        """Cuts off requests whose answers have not begun. Any thread may call it."""
        if self._running is not None and not self._running.is_closed():
            self._running.call_soon_threadsafe(self._cut_off)

    def _cut_off(self) -> None:
        for task in self.waiting:
            task.cancel()


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket to an upstream. Its kernel asks a machine that says nothing whether it is there."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SILENCE.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux has all of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _session(force_close: bool = False) -> aiohttp.ClientSession:
    """`force_close`: no connection is used twice. llama.cpp's server closes it after a stream, and
    does not say so.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            force_close=force_close,
            keepalive_timeout=None if force_close else IDLE_SECONDS,
            socket_factory=_socket,
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )
