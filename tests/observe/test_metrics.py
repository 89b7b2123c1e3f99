"""Metrics for Prometheus: events of this process, and the state of the run from its ledger."""

import functools
import json
import re
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest
import yaml
from support.made_up_facts import contribution, facts_of, trained

from dipaco.control.ledger import Ledger
from dipaco.control.planning.tasks import Claim, Task
from dipaco.control.process_id import ProcessId, _began
from dipaco.errors import CannotListen
from tests.control.conftest import plan  # noqa: F401
from tests.support.members import join

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dipaco.observe.metrics import CombinedCallbacks, RunMetrics, WorkerMetrics, serve_metrics

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
    join(ledger, "w", process_id=str(ProcessId.here()))
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
    open_ledger = functools.partial(Ledger, tmp_path / "ledger.sqlite")
    with serve_metrics(port, open_ledger, fresh_seconds=0.0) as metrics:
        metrics.step_taken(TRAIN, 2.0, 64)
        heard = read(port)
        assert heard["dipaco_worker_tokens_total",] == 64
        assert heard["dipaco_run_tasks", "claimed", "modular", "outer"] == 1
        assert heard["dipaco_run_phase", "early/0000", "modular"] == 0
        assert heard["dipaco_run_workers", "here"] == 1
        assert heard["dipaco_run_refusals_total",] == 0
        assert heard["dipaco_run_bytes", "contributions_sent"] > 0
        tokens = heard["dipaco_run_tokens", "modular"]
        assert tokens == half_done.progress.training_totals("modular").tokens
        half_done.queue.give_back_all()
        (member,) = half_done.members.list()
        silent = {"name": member.name, "heartbeats": member.heartbeats}
        half_done._database.change("mark_silent", **silent)  # preempted: it never leaves
        heard = read(port)
        assert heard["dipaco_run_tasks", "modular", "outer", "ready"] == 1
        assert (heard["dipaco_run_workers", "here"], heard["dipaco_run_workers", "silent"]) == (
            0,
            1,
        )
    with pytest.raises(OSError, match="refused"):
        read(port)


def test_what_falls_at_a_rollback_is_no_counter(half_done, tmp_path):
    """Prometheus takes a counter that falls for one that began at 0 again."""

    def families():
        metrics = RunMetrics(lambda: Ledger(tmp_path / "ledger.sqlite"), 0.0)
        return {
            family.name: (family.type, sum(sample.value for sample in family.samples))
            for family in metrics.collect()
        }

    before = families()
    half_done.queue.give_back_all()
    half_done.rollbacks.go_back("modular", 0, [])
    after = families()
    fallen = {name for name, (_, value) in after.items() if value < before[name][1]}
    assert fallen >= {"dipaco_run_tokens", "dipaco_run_bytes"}
    assert {after[name][0] for name in fallen} == {"gauge"}


def test_a_worker_that_was_killed_on_this_machine_is_lost_at_once_as_in_status(half_done, tmp_path):
    with subprocess.Popen(["sleep", "60"]) as other:
        process_id = str(ProcessId.here()._replace(pid=other.pid, began=_began(other.pid)))
        join(half_done, "other", pid=other.pid, process_id=process_id)
        assert workers_of(half_done, tmp_path) == {"here": 2, "silent": 0, "left": 0, "lost": 0}
        other.kill()
        other.wait()
    assert workers_of(half_done, tmp_path) == {"here": 1, "silent": 0, "left": 0, "lost": 1}
    assert {m.name: m.presence for m in half_done.members.as_seen_here()} == {
        "w": "here",
        "other": "lost",
    }


def workers_of(ledger, folder):
    metrics = RunMetrics(lambda: Ledger(folder / "ledger.sqlite"), 0.0)
    (family,) = (each for each in metrics.collect() if each.name == "dipaco_run_workers")
    return {sample.labels["state"]: sample.value for sample in family.samples}


def test_scrapes_of_the_same_seconds_share_one_reading_of_the_ledger(half_done, tmp_path):
    opened, now = [], [100.0]

    def open_ledger():
        opened.append(now[0])
        return Ledger(tmp_path / "ledger.sqlite")

    metrics = RunMetrics(open_ledger, 5.0, lambda: now[0])
    first = list(metrics.collect())
    for _ in range(20):
        now[0] += 0.2
        assert list(metrics.collect()) == first
    half_done.queue.give_back_all()
    now[0] += 1.1
    assert list(metrics.collect()) != first
    assert opened == [100.0, pytest.approx(105.1)]


def test_while_the_ledger_does_not_answer_scrapes_are_given_what_was_read_last(half_done, tmp_path):
    is_asked, answers = threading.Event(), threading.Event()

    def open_ledger():
        is_asked.set()
        assert answers.wait(60)
        return Ledger(tmp_path / "ledger.sqlite")

    metrics = RunMetrics(open_ledger, 0.0)
    answers.set()
    first = list(metrics.collect())
    is_asked.clear()
    answers.clear()
    waiting = threading.Thread(target=lambda: list(metrics.collect()))
    waiting.start()
    assert is_asked.wait(60)
    assert list(metrics.collect()) == first
    answers.set()
    waiting.join(60)
    assert not waiting.is_alive()


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


EXAMPLES = Path(__file__).parents[2] / "configs" / "examples"


def asked_by_alerts():
    groups = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def asked_by_the_board():
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("asked", [asked_by_alerts, asked_by_the_board])
def test_alerts_and_the_board_ask_for_metrics_and_labels_that_there_are(half_done, tmp_path, asked):
    http = pytest.importorskip("dipaco.serving.http.metrics", reason="no extra `serve` here")
    registry = CollectorRegistry()
    registry.register(RunMetrics(lambda: Ledger(tmp_path / "ledger.sqlite"), 0.0))
    work, server = WorkerMetrics(registry), http.Metrics()
    work.task_started(TRAIN)
    work.task_finished(TRAIN, [trained("modular", 2, 0)])
    server.answers.labels("/v1/completions", 200).inc()
    server.prompts.labels("quickstart", "0").inc()
    server.requests.begin("quickstart", 3, 0.0).add_tokens(2, 0.1, 0.2)
    text = generate_latest(registry).decode() + server.text().decode()
    labels = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for expression in asked():
        for name, chosen in re.findall(r"\b((?:dipaco_|vllm:)\w+)(?:\{(.*?)\})?", expression):
            named = set(re.findall(r"(\w+)=", chosen)) - {"job"}
            assert named <= labels[name], expression
