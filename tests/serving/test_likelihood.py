"""A service that routes by likelihood: with the paths that it serves, and at a stated cost."""

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.errors import BadSetting
from dipaco.runs.errors import NotAllPaths
from dipaco.runs.opening import reading
from dipaco.runs.routing import paths_of_prefixes, prefixes_of, routing_by
from dipaco.serving import prefix_scores
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.warm_up import WarmUp
from dipaco.store.errors import ObjectMissing


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
        choice = service.route(served, prompt)
        assert (choice.path, choice.rule) == (path, "likelihood")
        assert f"path {path} = " in choice.describe()
        assert "log-likelihoods plus prior, the best first" in choice.describe()
        assert all(service.cache.contains(served.modules_of(each)) for each in range(4))
    stats = service.cache.stats()
    assert (stats.paths, stats.modules) == (4, 4)
    assert 2 <= stats.misses <= 3  # pins that read modules: paths share them
    before = service.routing_stats()
    assert before.prefills == 4 * before.prompts > 0
    service.route(served, ids[0])  # its prefix is cached
    assert service.routing_stats() == before


def test_a_prompt_compiles_nothing_after_the_warm_up(service):
    compiled = prefix_scores._log_likelihoods
    compiled.clear_cache()
    WarmUp().run(service._dispatcher.programs())
    assert compiled._cache_size() == 1
    service.route(service.releases.current, np.arange(100, 120, dtype=np.int32))
    assert compiled._cache_size() == 1


def test_a_path_that_cannot_be_read_does_not_stop_the_warm_up(service, monkeypatch):
    def missing(modules):
        raise ObjectMissing(file="modules/x")

    monkeypatch.setattr(service._dispatcher._scorer, "_pin", missing)
    WarmUp().run(service._dispatcher.programs())


def test_the_cost_of_routing_is_in_the_metrics(service, prompts):
    pytest.importorskip("prometheus_client", reason="HTTP needs the `serve` extra")
    from dipaco.serving.http.metrics import Metrics

    service.route(service.releases.current, service.tokenizer.encode(prompts)[0])
    metrics, stats = Metrics(), service.routing_stats()
    metrics.watch(service)
    text = metrics.text().decode()
    assert f"dipaco_routed_prefixes_total {stats.prompts}.0" in text
    assert f"dipaco_routing_prefills_total {stats.prefills}.0" in text
    assert f"dipaco_routing_path_tokens_total {stats.path_tokens}.0" in text


def test_a_path_that_cannot_be_read_refuses_the_prompt(service, monkeypatch):
    def missing(modules):
        raise ObjectMissing(file="modules/x")

    monkeypatch.setattr(service._dispatcher._scorer, "_pin", missing)
    with pytest.raises(NotAllPaths, match="cannot be read"):
        service.route(service.releases.current, np.arange(7, dtype=np.int32))


def test_a_rule_that_there_is_not_is_refused(tiny, limits):
    with pytest.raises(BadSetting, match="one of features, likelihood"):
        Service(tiny.folder, ServiceSettings(limits=limits, rule="luck"), say=lambda _: None)
