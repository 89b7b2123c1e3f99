"""A path whose bytes are gone is served as long as it is in memory."""

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.testclient import TestClient

from dipaco.serving.http.app import make_app
from dipaco.serving.service import Service, ServiceSettings
from tests.support.serving_rig import error_of

ALL = {"path": 1, "prompt": "jiji", "model": "toy", "max_tokens": 4, "temperature": 0}


@pytest.fixture
def running(tiny, copy_of, limits):
    """Of a copy of the run, whose files a test may remove."""
    folder = copy_of(tiny).folder
    with Service(folder, ServiceSettings(limits=limits), say=lambda _: None) as service:
        service.start()
        service.follower.stop()  # it has looked at every byte
        yield service


def remove_all_bytes(service):
    objects = service.run.objects
    for receipt in service.releases.current.release.objects.values():
        objects.place_of(receipt.name).unlink()


def test_a_path_in_memory_is_served_after_its_bytes_are_gone_and_others_are_refused(running):
    def ask(path):
        return client.post("/v1/completions", json=ALL | {"path": path})

    with TestClient(make_app(running)) as client:
        before = ask(1)
        remove_all_bytes(running)
        running.follower.verify_current()
        assert set(client.get("/readyz").json()["detail"]["paths_not_whole"]) == set("0123")
        after = ask(1)
        assert (before.status_code, after.status_code) == (200, 200), after.text
        assert after.json()["choices"] == before.json()["choices"]
        in_memory = {
            path
            for path in range(4)
            if running.cache.contains(running.releases.current.modules_of(path))
        }
        assert 1 in in_memory
        for path in set(range(4)) - in_memory:
            error_of(ask(path), 503, "path", "path_not_whole")
        assert client.get("/readyz").status_code == 200
