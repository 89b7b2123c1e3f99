"""Re-routing every W new tokens: the router of the run for it chooses the same paths as in the
run's evaluation.
"""

import asyncio
import contextlib
import dataclasses
import json
import re
import shutil
import sqlite3

import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.testclient import TestClient

from dipaco.data.windows import first_tokens
from dipaco.evaluation.rerouting import path_of_tokens
from dipaco.runs.opening import reading
from dipaco.serving import rerouting
from dipaco.serving.dispatch import NextPath, PathChoice, PromptRouter
from dipaco.serving.errors import PathCacheTooSmall
from dipaco.serving.http.answer import Answer
from dipaco.serving.http.app import make_app
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.text import shown
from dipaco.store.errors import BucketMissing, StoreRefuses
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.tasks import reroute as rerouter
from tests.support.serving_rig import (
    ask_and_leave,
    completion,
    events_of,
    full_logits,
    prompt_router,
    route,
    until,
)

EVERY = 8


@pytest.fixture(scope="module")
def rerouted(tiny, tmp_path_factory):
    """The finished run with a router that chooses now this path and now that."""
    folder = tmp_path_factory.mktemp("rerouted") / "run"
    shutil.copytree(tiny.folder, folder)
    rng = np.random.default_rng(1)
    with reading(folder) as run:
        base = run.path_of(run.ledger.facts.release("base"), 0)
        head = {"weight": (run.config.model.d_model, 4), "bias": (4,)}
        drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in head.items()}
        below_head = {name: base[name] for name in ("embed", "block_00", "block_01")}
        router = save_tree(run.objects, "routers", {"model": below_head, "head": drawn})
    artifacts, summary = {"within_router": router}, {"rows": [], "release": 2}
    row = ("reroute", json.dumps(artifacts), json.dumps(summary), 1.0, 0)
    in_ledger(folder, "INSERT INTO stages VALUES (?, ?, ?, ?, ?)", *row)
    return folder


def in_ledger(folder, statement, *values):
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        return ledger.execute(statement, values).fetchall()


@pytest.fixture(scope="module")
def settings(limits):
    return ServiceSettings(limits=limits, reroute_every=EVERY)


@pytest.fixture(scope="module")
def service(rerouted, settings):
    """With its loop running; tests leave it as it was."""
    with Service(rerouted, settings, say=lambda _: None) as service:
        service.start()
        yield service


@pytest.fixture
def client(service):
    with TestClient(make_app(service)) as client:
        yield client


def reroute(service, text):
    """As a request that begins now does."""
    rerouting = prompt_router(service).reroute(service.releases.current, text, "someone")
    return asyncio.run(rerouting)


class AlwaysPath3:
    """A router that sends every text there."""

    def next_path(self, text):
        return 3


def counted(client, name):
    found = re.search(rf"^dipaco_{name}_total (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1])


def test_the_paths_of_a_text_are_those_of_the_offline_evaluation(service, client):
    run, served, length = service.run, service.releases.current, service.model.max_length
    prefix = run.config.data.prefix_tokens
    tokens, lengths = first_tokens(run.corpus, run.corpus.documents("test"), length)
    prompts = tokens[lengths > prefix][:4, :prefix]
    body = {"model": "toy", "temperature": 0, "max_tokens": length, "ignore_eos": True}
    names = ("reroutes", "reroute_tokens", "reroute_choices", "reroute_router_tokens")
    before = [counted(client, name) for name in names]
    asked = body | {"prompt": prompts.tolist(), "logprobs": 0}
    choices = completion(client, asked)["choices"]
    after = [counted(client, name) for name in names]

    # What the evaluation gives for these texts as documents.
    spelled = {shown(piece): number for number, piece in enumerate(service.token_bytes)}
    made = [[spelled[token] for token in choice["logprobs"]["tokens"]] for choice in choices]
    texts_NT = np.concatenate([prompts, made], axis=1).astype(np.int32)
    params = load_tree(run.objects, run.stage("reroute").artifacts["within_router"])
    first_N = np.array([route(service, served, prompt).path for prompt in prompts])
    path_NT = path_of_tokens(first_N, rerouter._choices(run, params, texts_NT), EVERY, prefix)
    for ids, path_T, choice in zip(texts_NT, path_NT, choices, strict=True):
        by_path = [
            full_logits(service.model, run.path_of(served.release, path), ids) for path in range(4)
        ]
        expected = [by_path[path_T[t]][t - 1].argmax() for t in range(prefix, length)]
        assert ids[prefix:].tolist() == expected
        assert choice["text"] == service.tokenizer.decode(ids[prefix:].tolist())
        assert choice["path"] == path_T[-1]

    ends = np.arange(prefix + EVERY, length, EVERY)  # of chunks that others follow
    moves = path_NT[:, ends] != path_NT[:, ends - 1]
    assert 0 < moves.sum() < moves.size, "texts are meant to move, and to stay"
    expected = moves.sum(), (moves * ends).sum(), moves.size, len(moves) * ends.sum()
    np.testing.assert_array_equal(np.subtract(after, before), expected)

    streamed = body | {"prompt": prompts[0].tolist(), "stream": True}
    events = events_of(client.post("/v1/completions", json=streamed))
    assert "".join(event["choices"][0]["text"] for event in events) == choices[0]["text"]
    assert events[-1]["choices"][0]["path"] == choices[0]["path"]


def test_texts_of_any_length_compile_nothing_after_the_warm_up(service):
    (router,) = service.dispatcher.rerouters.values()
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
        assert not service.dispatcher.rerouters, "without re-routing it is not read"


def test_a_router_that_appears_after_its_release_is_loaded(rerouted, settings, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(rerouted, folder)
    (row,) = in_ledger(folder, "SELECT * FROM stages WHERE stage = 'reroute'")
    in_ledger(folder, "DELETE FROM stages WHERE stage = 'reroute'")
    text = np.arange(1, 51, dtype=np.int32)
    with Service(folder, settings, say=lambda _: None) as service:
        assert reroute(service, text).tokens_read == 32
        in_ledger(folder, "INSERT INTO stages VALUES (?, ?, ?, ?, ?)", *row)
        assert not service.follower.poll()  # no newer release
        assert reroute(service, text).tokens_read == 50


async def always_path_0(router, served, prompt, path, client):
    return PathChoice(0, tuple(served.release.paths[0]), None)


def assert_a_text_stays_on_path_0(service, client, monkeypatch):
    """Where it begins, though the router sends it to path 3."""
    body = {"model": "toy", "prompt": "and so on", "temperature": 0, "max_tokens": 3 * EVERY}
    (expected,) = completion(client, body | {"path": 0})["choices"]
    digest = service.releases.current.digest
    monkeypatch.setattr(PromptRouter, "route", always_path_0)
    monkeypatch.setattr(service.dispatcher, "rerouters", {digest: AlwaysPath3()})
    (choice,) = completion(client, body)["choices"]
    assert (choice["text"], choice["path"]) == (expected["text"], 0)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_text_whose_next_path_is_not_whole_stays_on_its_path(
    rerouted, settings, tmp_path, monkeypatch, is_known
):
    folder = tmp_path / "run"
    shutil.copytree(rerouted, folder)
    with Service(folder, settings, say=lambda _: None) as service:
        service.start()
        release = service.releases.current.release
        (folder / release.objects[release.paths[3]["late/0001"]].name).unlink()
        if is_known:
            service.follower.verify_current()
        with TestClient(make_app(service)) as client:
            assert_a_text_stays_on_path_0(service, client, monkeypatch)


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


def test_choosing_a_path_again_holds_back_no_other_choice(service, client, monkeypatch):
    """One choice has ended before the path of the other is known, which moves then, as if at
    once.
    """
    slow = Slow()

    async def watched(answer, events=Answer.events):
        async for some in events(answer):
            slow.has_happened |= any(each.index == 1 and each.finish_reason for each in some)
            yield some

    body = {"model": "toy", "prompt": [[7, 9, 11], [8, 9, 11]], "temperature": 0}
    body |= {"max_tokens": EVERY + 2, "ignore_eos": True}
    monkeypatch.setattr(PromptRouter, "route", always_path_0)
    monkeypatch.setattr(PromptRouter, "reroute", staticmethod(slow.reroute))
    slow.has_happened = True
    expected = completion(client, body)["choices"]
    slow.has_happened = False
    monkeypatch.setattr(Answer, "events", watched)
    choices = completion(client, body)["choices"]
    assert slow.waited_for == [True, True]
    assert [choice["path"] for choice in choices] == [3, 0]
    assert [choice["text"] for choice in choices] == [choice["text"] for choice in expected]


async def test_a_client_that_hangs_up_ends_the_choosing_of_a_path(service, monkeypatch):
    begun, ended = [], []

    async def reroute(served, text, client):
        begun.append(client)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(client)

    monkeypatch.setattr(PromptRouter, "reroute", staticmethod(reroute))
    leaves = asyncio.Event()
    body = {"model": "toy", "prompt": [7, 9, 11], "max_tokens": 3 * EVERY, "ignore_eos": True}
    asking = ask_and_leave(make_app(service), json.dumps(body).encode(), leaves)
    asking = asyncio.create_task(asking)
    await until(lambda: begun)
    leaves.set()
    await asking
    await until(lambda: ended)


CANNOT_BE_READ = (
    StoreRefuses(url="s3://here", problem="no"),
    BucketMissing(url="s3://here"),
    PathCacheTooSmall(num_bytes=2, max_bytes=1),
)


@pytest.mark.parametrize("error", CANNOT_BE_READ, ids=lambda error: type(error).__name__)
def test_a_text_whose_next_path_cannot_be_read_now_stays_on_its_path(
    service, client, monkeypatch, error
):
    @contextlib.asynccontextmanager
    async def pinned(admission, modules, client, pinned=PathAdmission.pinned):
        if modules == other:
            raise error
        async with pinned(admission, modules, client):
            yield

    other = service.releases.current.modules_of(3)
    monkeypatch.setattr(PathAdmission, "pinned", pinned)
    assert_a_text_stays_on_path_0(service, client, monkeypatch)
