"""A service that routes by likelihood: with the paths that it serves, and at a stated cost."""

import asyncio
import threading

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.errors import BadSetting
from dipaco.runs.errors import NotAllPaths
from dipaco.runs.opening import reading
from dipaco.runs.routing import paths_of_prefixes, prefixes_of, routing_by
from dipaco.serving import prefix_scores
from dipaco.serving.dispatch import Dispatcher, PromptRouter, dispatch
from dipaco.serving.errors import PathCacheTooSmall
from dipaco.serving.fairness import FairThreads
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.warm_up import WarmUp
from dipaco.store.errors import BucketMissing, ObjectMissing, StoreRefuses, StoreUnreachable
from tests.support.serving_rig import path_bytes, prompt_router, route, until


@pytest.fixture(scope="module")
def service(tiny, limits):
    """Its loop is not running: routing needs none."""
    settings = ServiceSettings(limits=limits, rule="likelihood")
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        yield service


def test_prompts_go_where_evaluation_sends_them_by_paths_that_stay_in_memory(
    service, tiny, prompts
):
    ids = service.tokenizer.encode(prompts)
    with reading(tiny.folder) as run:
        release = run.ledger.facts.release(MODULAR)
        likelihood = routing_by(run, "likelihood")
        expected = paths_of_prefixes(run, release, likelihood, *prefixes_of(run, ids))
    served = service.releases.current
    for prompt, path in zip(ids, expected, strict=True):
        choice = route(service, served, prompt)
        assert (choice.path, choice.rule) == (path, "likelihood")
        assert f"path {path} = " in choice.describe()
        assert "log-likelihoods plus prior, the best first" in choice.describe()
        assert all(service.cache.contains(served.modules_of(each)) for each in range(4))
    stats = service.cache.stats()
    assert (stats.paths, stats.modules) == (4, 4)
    assert stats.evictions == 0
    before = service.routing_stats()
    assert before.prefills == 4 * before.prompts > 0
    route(service, served, ids[0])  # its prefix is cached
    assert service.routing_stats() == before


def test_a_prompt_compiles_nothing_after_the_warm_up(tiny, limits):
    """Nor where the first path cannot be read."""
    settings = ServiceSettings(limits=limits, rule="likelihood")
    compiled = prefix_scores.log_likelihoods
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        served, dispatcher = service.releases.current, service.dispatcher
        pin, lost = dispatcher.cache.pin, served.modules_of(0)

        def missing(modules):
            if modules == lost:
                raise ObjectMissing(file="modules/x")
            return pin(modules)

        dispatcher.cache.pin = missing
        compiled.clear_cache()
        WarmUp().run(dispatcher.programs())
        assert compiled._cache_size() == len(dispatcher.batch_sizes)
        dispatcher.cache.pin = pin
        for number in (1, 3):  # these many at once
            asked = [np.arange(each, 20 + each, dtype=np.int32) for each in range(number)]
            dispatcher.begin_all([(prompt, served.release, "") for prompt in asked])
        route(service, served, np.arange(100, 120, dtype=np.int32))
        assert service.routing_stats().prefills > 4, "each path has read it"
        assert compiled._cache_size() == len(dispatcher.batch_sizes)


def test_the_cost_of_routing_is_in_the_metrics(service, prompts):
    pytest.importorskip("prometheus_client", reason="HTTP needs the `serve` extra")
    from dipaco.serving.http.metrics import Metrics

    route(service, service.releases.current, service.tokenizer.encode(prompts)[0])
    metrics, stats = Metrics(), service.routing_stats()
    metrics.watch(service)
    text = metrics.text().decode()
    assert f"dipaco_routed_prefixes_total {stats.prompts}.0" in text
    assert f"dipaco_routing_prefills_total {stats.prefills}.0" in text
    assert f"dipaco_routing_path_tokens_total {stats.path_tokens}.0" in text


def test_a_path_that_cannot_be_read_refuses_the_prompt(service, monkeypatch):
    def missing(modules):
        raise ObjectMissing(file="modules/x")

    monkeypatch.setattr(service.dispatcher.cache, "pin", missing)
    with pytest.raises(NotAllPaths, match="cannot be read"):
        route(service, service.releases.current, np.arange(7, dtype=np.int32))


async def test_prompts_whose_paths_are_read_take_no_thread_from_others(
    service, tiny, limits, prompts
):
    settings = ServiceSettings(limits=limits, rule="likelihood")
    ids, may_read = service.tokenizer.encode(prompts), threading.Event()
    expected = [route(service, service.releases.current, prompt).path for prompt in ids]
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        served, load = service.releases.current, service.cache._load
        service.cache._load = lambda receipt: may_read.wait(60) and load(receipt)
        threads = FairThreads(2, "test")
        router = PromptRouter(service.dispatcher, PathAdmission(service.cache), threads)
        routed = [asyncio.create_task(router.route(served, prompt, None, "one")) for prompt in ids]
        gone = asyncio.create_task(router.route(served, ids[0][:5], None, "one"))
        await until(lambda: service.cache.stats().pinned)
        assert await asyncio.wait_for(threads.run("one", lambda: 7), 30) == 7
        assert not any(each.done() for each in routed)
        gone.cancel()
        may_read.set()
        choices = await asyncio.gather(*routed)
        assert service.cache.stats().pinned == 0
        assert [choice.path for choice in choices] == expected


async def test_a_text_that_holds_no_path_waits_for_room_to_compare_paths(tiny, limits):
    """Paths are read one after the other, within the room for one, under the turns of clients."""
    text = np.arange(100, 140, dtype=np.int32)
    room = path_bytes(tiny.folder) + 1000  # for one path
    settings = ServiceSettings(limits=limits, rule="likelihood", path_bytes=room)
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        served = service.releases.current
        paths = PathAdmission(service.cache)
        router = PromptRouter(service.dispatcher, paths, FairThreads(1, "test"))
        async with paths.pinned(served.modules_of(0), "client"):
            goes = asyncio.create_task(router.reroute(served, text, "one"))
            await until(lambda: len(paths._waiting) == 1)
            assert service.cache.stats().paths == 1, "nothing is read outside of admission"
        assert (await goes).tokens_read == 32


@pytest.mark.parametrize(
    "error",
    [
        StoreUnreachable(url="s3://x", seconds=9.0, problem="it is away"),
        StoreRefuses(url="s3://x", problem="no"),
        BucketMissing(url="s3://x"),
        PathCacheTooSmall(num_bytes=2, max_bytes=1),
        ObjectMissing(file="modules/x"),
    ],
)
async def test_a_text_whose_next_paths_cannot_be_read_stays_where_it_is(
    service, monkeypatch, error
):
    def fails(modules):
        raise error

    monkeypatch.setattr(service.cache, "contains", lambda modules: False)
    monkeypatch.setattr(service.cache, "preload", fails)
    text = np.arange(50, 90, dtype=np.int32)
    assert await prompt_router(service).reroute(service.releases.current, text, "one") is None


async def test_prompts_that_begin_alike_are_scored_once(service):
    before, prompt = service.routing_stats(), np.arange(30, 70, dtype=np.int32)
    router, served = prompt_router(service, 8), service.releases.current
    alike = [router.route(served, prompt, None, str(n)) for n in range(40)]
    assert len({choice.path for choice in await asyncio.gather(*alike)}) == 1
    assert service.routing_stats().prefills == before.prefills + 4


async def test_prompts_that_come_together_go_where_each_goes_alone_and_read_a_path_at_once(
    service, prompts, monkeypatch
):
    served, ids = service.releases.current, service.tokenizer.encode(prompts)[:8]
    of_run = service.run, served.release, "likelihood", service.cache
    alone, together, num_read = Dispatcher(*of_run), Dispatcher(*of_run), []
    expected = [dispatch(*of_run[:2], prompt, None, alone) for prompt in ids]

    def counted(texts, modules, nats=together._nats):
        num_read.append(len(texts))
        return nats(texts, modules)

    monkeypatch.setattr(together, "_nats", counted)

    router = prompt_router(service, dispatcher=together)
    choices = await asyncio.gather(
        *(router.route(served, prompt, None, str(n)) for n, prompt in enumerate(ids))
    )
    for choice, one in zip(choices, expected, strict=True):
        np.testing.assert_allclose(choice.scores, one.scores, rtol=1e-5)
        assert choice.path == one.path
    assert len({one.path for one in expected}) > 1
    assert num_read == [8, 8, 8, 8], "four paths, and all prompts at once"


def test_a_rule_that_there_is_not_is_refused(tiny, limits):
    with pytest.raises(BadSetting, match="one of features, likelihood"):
        Service(tiny.folder, ServiceSettings(limits=limits, rule="luck"), say=lambda _: None)
