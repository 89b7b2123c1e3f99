"""A histogram that counts many equal values at once, beside Prometheus's own."""

import pytest

pytest.importorskip("prometheus_client", reason="HTTP needs the `serve` extra")

import prometheus_client

from dipaco.serving.http.metrics import BulkHistogram

BUCKETS = (0.1, 0.5, 1.0, 2.5)
SEEN = {("a", "0"): [(0.3, 5), (0.5, 2), (0.50001, 1), (7.0, 3)], ("b", "0"): [(0.0, 4)]}


def test_it_says_what_prometheus_says():
    theirs, ours = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    plain = prometheus_client.Histogram(
        "x:seconds", "Seconds.", ("model", "engine"), buckets=BUCKETS, registry=theirs
    )
    bulk = BulkHistogram("x:seconds", "Seconds.", ("model", "engine"), BUCKETS, ours)
    for labels, values in SEEN.items():
        for value, number in values:
            bulk.observe(labels, value, number)
            for _ in range(number):
                plain.labels(*labels).observe(value)
    told, expected = lines_of(ours), lines_of(theirs)
    assert told.keys() == expected.keys()
    for line, value in expected.items():
        assert told[line] == pytest.approx(value)


def lines_of(registry):
    """What a scrape reads, without when each series began."""
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if "_created" not in line)
    return {name: value if name.startswith("#") else float(value) for name, value in values}
