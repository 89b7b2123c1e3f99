"""Re-routing every W new tokens: the router that the run trained for it chooses the same paths as
in the run's evaluation.
"""

import asyncio
import contextlib
import dataclasses
import json
import shutil
import sqlite3
import threading

import jax
import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.data.windows import first_tokens
from dipaco.evaluation.rerouting import path_of_tokens
from dipaco.model.lm import forward
from dipaco.serving.decoding.stream import Finish
from dipaco.serving.errors import PathCacheTooSmall
from dipaco.serving.fair_threads import FairThreads
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.prompt_router import NextPath, PromptRouter
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.warm_up import WarmUp
from dipaco.store.errors import BucketMissing, StoreRefuses
from dipaco.store.tensors import load_tree
from dipaco.workers.tasks import reroute as rerouter
from tests.support.serving_rig import ask_and_leave, route

EVERY = 8
SETTINGS = (
    *("baselines=[]", "reroute.every=8", "reroute.steps=30", "reroute.learning_rate=0.01"),
    "evaluation.every_phases=1",
)


@pytest.fixture(scope="module")
def rerouted(dipaco, config_file, tmp_path_factory):
    """A finished run with a re-routing router."""
    folder = tmp_path_factory.mktemp("rerouted") / "run"
    words = (f"--set={setting}" for setting in SETTINGS)
    ended = dipaco("train", config_file, "--run", folder, *words)
    assert ended.code == 0, ended.err
    return folder


def reroute(service, text):
    """As a request that begins now does."""

    async def run():
        router = PromptRouter(service, PathAdmission(service.cache), FairThreads(1, "test"))
        return await router.reroute(service.releases.current, text, "someone")

    return asyncio.run(run())


class AlwaysPath3:
    """A router that sends every text there."""

    def next_path(self, text):
        return 3


@pytest.fixture
def settings(limits):
    return ServiceSettings(limits=limits, reroute_every=EVERY)


def test_the_paths_of_a_text_are_those_of_the_offline_evaluation(rerouted, settings):
    from starlette.testclient import TestClient

    from dipaco.serving.http.app import make_app

    with Service(rerouted, settings, say=lambda _: None) as service:
        run, served, length = service.run, service.releases.current, service.model.max_length
        parts = [run.path_of(served.release, path) for path in range(4)]
        full = jax.jit(lambda parts, tokens: forward(service.model, parts, tokens)[0])
        params = load_tree(run.objects, run.stage("reroute").artifacts["within_router"])

        def next_token(path, ids):
            tokens = np.zeros((1, length), np.int32)
            tokens[0, : len(ids)] = ids
            return int(full(parts[path], tokens)[0, len(ids) - 1].argmax())

        def choices_of(ids):
            tokens_NT = np.zeros((1, length), np.int32)
            tokens_NT[0, : len(ids)] = ids
            return rerouter._choices(run, params, tokens_NT)

        documents = run.corpus.documents("valid")
        tokens, lengths = first_tokens(run.corpus, documents, length)
        prefix = run.config.data.prefix_tokens
        service.start()
        num_moves = num_read_again = num_choices = num_read = 0
        with TestClient(make_app(service)) as client:
            for row in tokens[lengths > prefix][:6]:
                ids = row[:prefix].tolist()
                first = route(service, served, row[:prefix]).path
                paths = [first]
                while len(ids) < length:
                    ids.append(next_token(paths[-1], ids))
                    if len(ids) < length and (len(ids) - prefix) % EVERY == 0:
                        paths.append(int(choices_of(ids)[0, len(ids) - 1]))
                        num_choices += 1
                        num_read += len(ids)
                        if paths[-1] != paths[-2]:
                            num_moves += 1
                            num_read_again += len(ids)
                # What the evaluation gives for this text as a document.
                expected = path_of_tokens(np.array([first]), choices_of(ids), EVERY, prefix)
                np.testing.assert_array_equal(expected[0, prefix:], np.repeat(paths, EVERY))

                body = {"model": "toy", "prompt": row[:prefix].tolist(), "temperature": 0}
                answer = client.post("/v1/completions", json=body | {"max_tokens": length})
                (choice,) = answer.json()["choices"]
                assert choice["text"] == service.tokenizer.decode(ids[prefix:])
                assert choice["path"] == paths[-1]
            metrics = client.get("/metrics").text
    assert num_moves > 0, "the text is meant to move"
    assert f"dipaco_reroutes_total {num_moves}.0" in metrics
    assert f"dipaco_reroute_tokens_total {num_read_again}.0" in metrics
    assert f"dipaco_reroute_choices_total {num_choices}.0" in metrics
    assert f"dipaco_reroute_router_tokens_total {num_read}.0" in metrics


def test_texts_of_any_length_compile_nothing_after_the_warm_up(rerouted, settings):
    from dipaco.serving import rerouting

    with Service(rerouted, settings, say=lambda _: None) as service:
        (router,) = service._rerouters.values()
        WarmUp().run(router.programs())
        before = rerouting._next_path._cache_size()
        for size in (1, 31, 63, 64):
            assert router.next_path(np.arange(size, dtype=np.int32)) in range(4)
        assert rerouting._next_path._cache_size() == before


def test_an_earlier_release_is_re_routed_by_the_document_router(rerouted, settings):
    notices = []
    older = dataclasses.replace(settings, phase=1)
    text = np.arange(1, 51, dtype=np.int32)
    with Service(rerouted, older, say=notices.append) as service:
        service.start()
        served = service.releases.current
        rerouted_to = reroute(service, text)
        assert rerouted_to == (route(service, served, text[-32:]).path, 32)
    assert any("re-routed by the document router" in sentence for sentence in notices)

    never = dataclasses.replace(settings, reroute_every=None)
    with Service(rerouted, never, say=notices.append) as service:
        assert not service._rerouters, "without re-routing it is not read"


def test_a_router_that_appears_after_its_release_is_loaded(rerouted, settings, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(rerouted, folder)

    def in_ledger(statement, *values):
        with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
            return ledger.execute(statement, values).fetchall()

    (row,) = in_ledger("SELECT * FROM stages WHERE stage = 'reroute'")
    in_ledger("DELETE FROM stages WHERE stage = 'reroute'")
    text = np.arange(1, 51, dtype=np.int32)
    with Service(folder, settings, say=lambda _: None) as service:
        assert reroute(service, text).tokens_read == 32
        in_ledger(f"INSERT INTO stages VALUES ({', '.join('?' * len(row))})", *row)
        assert not service.follower.poll()  # no newer release
        assert reroute(service, text).tokens_read == 50


@pytest.mark.parametrize("is_known", [True, False])
def test_a_text_whose_next_path_is_not_whole_stays_on_its_path(
    rerouted, settings, tmp_path, monkeypatch, is_known
):
    from starlette.testclient import TestClient

    from dipaco.serving.http.app import make_app

    folder = tmp_path / "run"
    shutil.copytree(rerouted, folder)
    body = {"model": "toy", "prompt": "and so on", "temperature": 0, "max_tokens": 3 * EVERY}
    with Service(folder, settings, say=lambda _: None) as service:
        service.start()
        # All texts begin on path 0, and are sent to path 3.
        served = service.releases.current
        monkeypatch.setattr(service, "_rerouters", {served.digest: AlwaysPath3()})
        release = served.release
        (folder / release.objects[release.paths[3]["late/0001"]].name).unlink()
        if is_known:
            service.follower.verify_current()
        with TestClient(make_app(service)) as client:
            on_path_0 = client.post("/v1/completions", json=body | {"path": 0}).json()
            monkeypatch.setattr(service, "begin_routing", _always(0, service.begin_routing))
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            (choice,), (expected,) = answer.json()["choices"], on_path_0["choices"]
            assert (choice["text"], choice["path"]) == (expected["text"], 0)


class Slow:
    """Choices of the path that take until something has happened, 5 s at most."""

    def __init__(self):
        self.has_happened, self.waited_for = False, []

    async def reroute(self, served, text, client):
        if text[0] != 7:
            return None
        for _ in range(500):
            if self.has_happened:
                break
            await asyncio.sleep(0.01)
        self.waited_for.append(self.has_happened)
        return NextPath(3, len(text))


def test_choosing_a_path_again_holds_back_no_other_choice(rerouted, settings, monkeypatch):
    """One choice has ended before the path of the other is known, which moves then, as if at
    once.
    """
    from starlette.testclient import TestClient

    from dipaco.serving.http.answer import Answer
    from dipaco.serving.http.app import make_app

    slow = Slow()

    async def watched(answer, events=Answer.events):
        async for some in events(answer):
            slow.has_happened |= any(each.index == 1 and each.finish_reason for each in some)
            yield some

    body = {"model": "toy", "prompt": [[7, 9, 11], [8, 9, 11]], "temperature": 0}
    body |= {"max_tokens": EVERY + 2, "ignore_eos": True}
    with Service(rerouted, settings, say=lambda _: None) as service:
        service.start()
        monkeypatch.setattr(service, "begin_routing", _always(0, service.begin_routing))
        with TestClient(make_app(service)) as client:
            monkeypatch.setattr(PromptRouter, "reroute", staticmethod(slow.reroute))
            slow.has_happened = True
            expected = client.post("/v1/completions", json=body).json()["choices"]
            slow.has_happened = False
            monkeypatch.setattr(Answer, "events", watched)
            choices = client.post("/v1/completions", json=body).json()["choices"]
    assert slow.waited_for == [True, True]
    assert [choice["path"] for choice in choices] == [3, 0]
    assert [choice["text"] for choice in choices] == [choice["text"] for choice in expected]


class FailsLate:
    """A choice of the path that fails when the loop has ended the text: two of its tokens are held
    then, the others have not been looked at.
    """

    def __init__(self, on_items):
        self._on_items, self._num_items, self._choice = on_items, 0, None
        self._may_go_on, self._is_ended = threading.Event(), threading.Event()

    def on_items(self, answer, choice, num_moves, items):
        """As the answer's, in the loop's thread, with each item by itself."""
        for item in items:
            self._choice, self._num_items = choice, self._num_items + 1
            if self._num_items > EVERY + 2:
                assert self._may_go_on.wait(30)
            self._on_items(answer, choice, num_moves, [item])
            if isinstance(item, Finish):
                self._is_ended.set()

    async def reroute(self, served, text, client):
        while len(self._choice.held) < 2:
            await asyncio.sleep(0.01)
        self._may_go_on.set()
        assert self._is_ended.wait(30)
        raise RuntimeError("the device is out of memory")


def test_no_token_is_left_out_where_choosing_a_path_fails(rerouted, settings, monkeypatch):
    from starlette.testclient import TestClient

    from dipaco.serving.http.answer import Answer
    from dipaco.serving.http.app import make_app

    body = {"model": "toy", "prompt": [7, 9, 11], "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": EVERY + 6}
    fails = FailsLate(Answer._on_items)
    with Service(rerouted, settings, say=lambda _: None) as service:
        service.start()
        with TestClient(make_app(service)) as client:
            (expected,) = client.post("/v1/completions", json=body | {"path": 0}).json()["choices"]
            monkeypatch.setattr(service, "begin_routing", _always(0, service.begin_routing))
            monkeypatch.setattr(PromptRouter, "reroute", staticmethod(fails.reroute))
            monkeypatch.setattr(Answer, "_on_items", lambda *each: fails.on_items(*each))
            (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected["text"], "length")


def test_a_client_that_hangs_up_ends_the_choosing_of_a_path(rerouted, settings, monkeypatch):
    from dipaco.serving.http.app import make_app

    begun, ended = [], []

    async def reroute(served, text, client):
        begun.append(client)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(client)

    async def hang_up(app):
        leaves = asyncio.Event()
        body = {"model": "toy", "prompt": [7, 9, 11], "max_tokens": 3 * EVERY, "ignore_eos": True}
        asking = asyncio.create_task(ask_and_leave(app, json.dumps(body).encode(), leaves))
        while not begun:
            await asyncio.sleep(0.01)
        leaves.set()
        await asking
        while not ended:
            await asyncio.sleep(0.01)

    with Service(rerouted, settings, say=lambda _: None) as service:
        service.start()
        monkeypatch.setattr(PromptRouter, "reroute", staticmethod(reroute))
        asyncio.run(asyncio.wait_for(hang_up(make_app(service)), 20))


@pytest.mark.parametrize("where", ["choosing", "reading"])
@pytest.mark.parametrize("error", [StoreRefuses, BucketMissing, PathCacheTooSmall])
def test_a_text_whose_next_path_cannot_be_read_now_stays_on_its_path(
    rerouted, settings, monkeypatch, error, where
):
    from starlette.testclient import TestClient

    from dipaco.serving.http.app import make_app

    @contextlib.asynccontextmanager
    async def pinned(admission, modules, client, *, waits=True, pinned=PathAdmission.pinned):
        if modules == other:
            raise error(url="s3://here", problem="no", num_bytes=2, max_bytes=1)
        async with pinned(admission, modules, client, waits=waits):
            yield

    body = {"model": "toy", "prompt": "and so on", "temperature": 0, "max_tokens": 3 * EVERY}
    with Service(rerouted, settings, say=lambda _: None) as service:
        service.start()
        served = service.releases.current
        other = served.modules_of(3)
        with TestClient(make_app(service)) as client:
            expected = client.post("/v1/completions", json=body | {"path": 0}).json()
            monkeypatch.setattr(service, "begin_routing", _always(0, service.begin_routing))
            if where == "reading":
                monkeypatch.setattr(service, "_rerouters", {served.digest: AlwaysPath3()})
                monkeypatch.setattr(PathAdmission, "pinned", pinned)
            else:
                monkeypatch.setattr(service, "_rerouters", {})
                monkeypatch.setattr(PromptRouter, "route", _raising_on_path(error))
                answer = asyncio.run(_next_path(service, served))
                assert answer is None
                return
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            (choice,), (wanted,) = answer.json()["choices"], expected["choices"]
            assert (choice["text"], choice["path"]) == (wanted["text"], 0)


def _raising_on_path(error):
    async def route(*_, **__):
        raise error(url="s3://here", problem="no", num_bytes=2, max_bytes=1)

    return route


async def _next_path(service, served):
    router = PromptRouter(service, PathAdmission(service.cache), FairThreads(1, "test"))
    return await router.reroute(served, np.arange(1, 51, dtype=np.int32), "someone")


def _always(path, route):
    return lambda served, prompt, _=None: route(served, prompt, path)
