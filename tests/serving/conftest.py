"""The tiny run, served in this process: one service and one client for all HTTP tests."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from dipaco.data.toy import toy_documents
from tests.support.async_tests import arguments_of

CHARACTERS = '{}":,abcdefghijklmnopqrstuvwxyz0123456789'
MERGES = [("n", "a"), ("na", "m"), ("nam", "e"), ('"', ":"), ("a", "b"), ("o", "n"), ("1", "7")]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """An `async def` test has an event loop, and two minutes."""
    if (given := arguments_of(pyfuncitem)) is None:
        return None
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), 120))
    return True


@pytest.fixture(scope="session")
def limits():
    """Few rows, and the same in all tests, so programs are compiled once."""
    from dipaco.serving.decoding.decode import LoopLimits

    return LoopLimits(rows=4, waiting=36, rows_per_step=(4,))


@pytest.fixture(scope="session")
def service(tiny, limits) -> Iterator:
    """With its loop running."""
    pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
    from dipaco.serving.service import Service, ServiceSettings
    from dipaco.serving.warm_up import WarmUp

    with Service(tiny.folder, ServiceSettings(limits=limits), say=lambda _: None) as service:
        service.told = []  # of each program: its name, how many are done, how many there are
        service.start(WarmUp(lambda *told: service.told.append(told)))
        yield service


@pytest.fixture(scope="session")
def client(service) -> Iterator:
    from starlette.testclient import TestClient

    from dipaco.serving.http.app import make_app

    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def chatting(service, tmp_path_factory):
    """`chatting(template)` is a context: a client of the service with that chat template."""
    from starlette.testclient import TestClient

    from dipaco.serving.http.app import HttpSettings, make_app
    from dipaco.serving.http.chat_template import ChatTemplate

    @contextlib.contextmanager
    def client(template):
        file = tmp_path_factory.mktemp("chat") / "chat_template.jinja"
        file.write_text(template)
        chat = ChatTemplate(file, service.tokenizer.file)
        app = make_app(service, settings=HttpSettings(chat=chat))
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client

    return client


@pytest.fixture(scope="session")
def url(service, serving) -> Iterator[str]:
    """The same service behind a real socket."""
    with serving(service) as url:
        yield url


@pytest.fixture(scope="module")
def grammars():
    """Of a vocabulary of 48 characters and merges; token 50 ends a text."""
    pytest.importorskip("llguidance", reason="structured output needs the `serve` extra")
    from dipaco.serving.decoding.grammar import Grammars, GrammarVocabulary
    from tests.support.serving_rig import byte_level

    tokens = [*CHARACTERS, *("".join(pair) for pair in MERGES)]
    tokenizer = byte_level(tokens, MERGES)
    grammars = Grammars(GrammarVocabulary(tokenizer.to_str(), len(tokens), None))
    grammars.text = tokenizer.decode
    return grammars


@pytest.fixture
def narrow_port(service, monkeypatch) -> Iterator[int]:
    """The same with a small send buffer and short time limits for clients."""
    import socket

    from dipaco.serving.http import server

    monkeypatch.setattr(server, "UNREAD_SECONDS", 1)
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.3)
    with server.listen("127.0.0.1", 0) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
        with _serving(service, listening):
            yield listening.getsockname()[1]


@pytest.fixture
def crowded_port(service) -> Iterator[int]:
    """The same for at most 20 connections."""
    from dipaco.serving.http import server

    with server.listen("127.0.0.1", 0) as listening, _serving(service, listening, connections=20):
        yield listening.getsockname()[1]


@pytest.fixture
def held(tiny, limits, serving, monkeypatch) -> Iterator:
    """A server behind a real socket, with path 0 in memory. Path 3 is read until `is_read` is set;
    `began` is set when that begins.
    """
    import threading
    from types import SimpleNamespace

    from dipaco.serving import engine
    from dipaco.serving.service import Service, ServiceSettings

    began, is_read, load = threading.Event(), threading.Event(), engine.load_for_jax
    with Service(tiny.folder, ServiceSettings(limits=limits), say=lambda _: None) as service:
        modules = service.releases.current.modules_of
        slow = {each.digest for each in modules(3).values()}
        assert not slow & {each.digest for each in modules(0).values()}, "they share a module"

        def slow_load(objects, receipt):
            if receipt.digest in slow:
                began.set()
                assert is_read.wait(120)
            return load(objects, receipt)

        monkeypatch.setattr(engine, "load_for_jax", slow_load)
        service.start()
        with serving(service) as url:
            yield SimpleNamespace(url=url, began=began, is_read=is_read)
            is_read.set()


@pytest.fixture(scope="session")
def serving():
    """`serving(service)` is a context: the service behind a real socket, by its URL."""
    from dipaco.serving.http.server import listen

    @contextlib.contextmanager
    def at_url(service, **more):
        with listen("127.0.0.1", 0) as listening, _serving(service, listening, **more):
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"

    return at_url


@contextlib.contextmanager
def _serving(service, listening, settings=None, **of_config) -> Iterator[None]:
    from dipaco.serving.http.app import make_app
    from dipaco.serving.http.server import http_config
    from tests.support.serving_rig import running

    with running(http_config(make_app(service, settings=settings), **of_config), listening):
        yield


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Of four clusters, so that they go to several paths."""
    documents = toy_documents(clusters=4, documents=12, words=6, seed=7)
    return [document.text.strip()[:20] for document in documents]
