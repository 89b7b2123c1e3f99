"""Metrics for Prometheus: events of this process, and the state of the run from its ledger."""

import socket
import urllib.request

import pytest

from dipaco.control.ledger import Ledger
from dipaco.control.tasks import Claim, Task
from dipaco.errors import CannotListen
from tests.control.conftest import contribution, facts_of, plan, trained  # noqa: F401

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dipaco.observe.metrics import CombinedCallbacks, WorkerMetrics, serve_metrics

TRAIN = Claim(Task("train", "modular", "2", 0), 1, 1, "w")


def test_a_worker_counts_tasks_by_kind_and_outcome_and_the_time_in_them():
    registry, now = CollectorRegistry(), [100.0]
    metrics = WorkerMetrics(registry, now=lambda: now[0])

    def value(name, **labels):
        return registry.get_sample_value(f"dipaco_worker_{name}_total", labels)

    metrics.task_started(TRAIN)
    metrics.step_taken(TRAIN, 2.0, 512)
    metrics.step_taken(TRAIN, 1.9, 512)
    now[0] += 30
    metrics.task_finished(TRAIN, [trained("modular", 2, 0), contribution("early/0001", 0, 2)])
    metrics.task_started(TRAIN)
    now[0] += 5
    metrics.claim_lost(TRAIN)
    assert value("tasks", kind="train", outcome="finished") == 1
    assert value("tasks", kind="train", outcome="lost") == 1
    assert value("task_seconds", kind="train") == 35
    assert value("tokens") == 1024
    assert value("leases_lost") == 1
    assert value("bytes", kind="contributions_sent") == trained("modular", 2, 0).bytes_up


@pytest.fixture
def half_done(tmp_path, plan):  # noqa: F811
    """Until the first outer step is due."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.start({"config": "{}"})
    ledger.members.join("w", host="h", pid=1, life="one", machine="m", version="1")
    while (claim := ledger.queue.claim("w")).task.kind != "outer":
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    yield ledger
    ledger.close()


def read(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_scrape_reads_the_present_state_of_the_run(half_done, tmp_path):
    port = free_port()
    with serve_metrics(port, lambda: Ledger(tmp_path / "ledger.sqlite")) as metrics:
        metrics.step_taken(TRAIN, 2.0, 64)
        heard = read(port)
        assert heard["dipaco_worker_tokens_total",] == 64
        assert heard["dipaco_run_tasks", "claimed", "modular", "outer"] == 1
        assert heard["dipaco_run_phase", "early/0000", "modular"] == 0
        assert heard["dipaco_run_workers", "here"] == 1
        assert heard["dipaco_run_refusals_total",] == 0
        assert heard["dipaco_run_bytes_total", "contributions_sent"] > 0
        tokens = heard["dipaco_run_tokens_total", "modular"]
        assert tokens == half_done.progress.training_totals("modular").tokens
        half_done.queue.give_back_all()
        assert read(port)["dipaco_run_tasks", "modular", "outer", "ready"] == 1
    with pytest.raises(OSError, match="refused"):
        read(port)


def test_a_taken_port_is_an_error_message(half_done, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(CannotListen, match=f"Cannot listen on 127.0.0.1:{port}"),
            serve_metrics(port, lambda: half_done),
        ):
            raise AssertionError("it listened")


def test_combined_callbacks_call_each_that_has_the_method():
    heard = []

    class Narrator:
        def claim_lost(self, claim):
            heard.append(claim)

        def compare_machines(self, then, now):
            heard.append((then, now))

    both = CombinedCallbacks(Narrator(), WorkerMetrics(CollectorRegistry()))
    both.claim_lost(TRAIN)
    both.compare_machines("a", "b")
    assert heard == [TRAIN, ("a", "b")]
