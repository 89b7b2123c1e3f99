"""Following a run: a newer release takes over when it is whole, and no request is dropped."""

import threading
import time

import pytest

from dipaco.control.errors import NotAvailable
from dipaco.serving import service as service_module
from dipaco.serving import warm_up
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest
from dipaco.serving.errors import ReleaseInconsistent, TooManyMaps
from dipaco.serving.models import ReleaseHealth
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import PathCache
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.warm_up import WarmUpProgram
from dipaco.store.errors import ObjectMissing, StoreUnreachable
from dipaco.store.objects import Objects
from tests.support.serving_rig import path_bytes


@pytest.fixture
def notices():
    return []


@pytest.fixture
def settings(limits):
    return ServiceSettings(limits=limits)


@pytest.fixture
def service(rewound, notices, settings):
    with Service(rewound.folder, settings, say=notices.append) as service:
        yield service


@pytest.fixture
def narrow(rewound, limits, notices):
    """A service with memory for two paths."""
    settings = ServiceSettings(limits=limits, path_bytes=2 * path_bytes(rewound.folder) + 1000)
    with Service(rewound.folder, settings, say=notices.append) as service:
        yield service


def problem_of(service, path):
    paths = PathAdmission(service.cache, service.health.problem_of)
    return paths.problem_of(service.releases.current.modules_of(path))


def begin(service, path=0, tokens=6):
    """Submits a request with the release it began in; the loop is not running."""
    items = []
    served = service.releases.current
    keep_alive = lambda some, served=served: items.extend(some)  # noqa: E731
    service.loop.submit(
        GenerationRequest(
            prompt_ids=(5, 6, 7),
            path=path,
            modules=served.modules_of(path),
            release=served.digest,
            max_new_tokens=tokens,
        ),
        keep_alive,
    )
    return items


def finish(service, *requests):
    """Runs the loop until they are over; the ids of each."""
    while not all(items and isinstance(items[-1], Finish) for items in requests):
        assert service.loop.run_once()
    for items in requests:
        assert items[-1].reason == "length", items[-1].error
    return [[token.id for token in items[:-1]] for items in requests]


def test_requests_finish_on_the_release_they_began_in_and_the_next_get_the_newer_one(
    service, rewound, notices, settings
):
    assert service.releases.current.release.phase == 1
    (alone,) = finish(service, begin(service))
    running = begin(service)
    rewound.publish()
    assert service.follower.poll()
    later = begin(service)
    old, new = finish(service, running, later)
    assert old == alone
    assert service.releases.current.release.phase == 2
    # As a service that starts with the newer release.
    with Service(rewound.folder, settings, say=notices.append) as fresh:
        assert finish(fresh, begin(fresh)) == [new]
    assert "phase 2 from now on" in notices[0]


def test_a_newer_release_is_found_once_and_the_old_one_is_dropped(service, rewound):
    assert not service.follower.poll()
    first = service.releases.current.digest
    rewound.publish()
    assert service.follower.poll()
    assert not service.follower.poll()
    assert service.releases.find(first) is None


def test_paths_in_use_are_read_before_the_swap(service, rewound):
    finish(service, begin(service, path=2))
    assert service.cache.stats().paths == 1
    rewound.publish()
    service.follower.poll()
    now = service.releases.current
    assert [service.cache.contains(now.modules_of(path)) for path in range(4)] == [0, 0, 1, 0]


def test_paths_in_use_are_not_evicted_for_those_of_a_newer_release(narrow, rewound):
    before = narrow.releases.current
    finish(narrow, begin(narrow, path=0), begin(narrow, path=3))
    rewound.publish()
    assert narrow.follower.poll()
    assert narrow.releases.current.release.phase == 2
    assert all(narrow.cache.contains(before.modules_of(path)) for path in (0, 3))
    assert narrow.cache.stats().evictions == 0
    finish(narrow, begin(narrow, path=0))


def test_paths_of_releases_that_are_served_no_more_make_way_for_a_newer_one(narrow, rewound):
    stale = {
        module: receipt._replace(digest=f"stale {receipt.digest}")
        for module, receipt in narrow.releases.current.modules_of(0).items()
    }
    narrow.cache._load = lambda receipt, load=narrow.cache._load: load(
        receipt._replace(digest=receipt.digest.removeprefix("stale "))
    )
    finish(narrow, begin(narrow, path=0))
    narrow.cache.preload(stale)
    finish(narrow, begin(narrow, path=0))
    rewound.publish()
    assert narrow.follower.poll()
    assert narrow.cache.contains(narrow.releases.current.modules_of(0))
    assert not narrow.cache.contains(stale)


class Uncompiled:
    """A re-routing router, for whose programs there is no room."""

    def programs(self):
        return [WarmUpProgram("re-routing of 64 tokens", pytest.fail)]


@pytest.mark.parametrize("problem", [TooManyMaps(used=950, most=1000), ObjectMissing(file="x")])
def test_a_router_that_cannot_be_used_holds_back_no_newer_release(
    rewound, limits, notices, monkeypatch, problem
):
    """One to re-route by, that appears while the server runs."""
    tried = []

    def load(run, release):
        tried.append(release.phase)
        if isinstance(problem, ObjectMissing):
            raise problem
        return Uncompiled() if release.phase == 1 else None

    def check_maps():
        raise problem

    settings = ServiceSettings(limits=limits, reroute_every=8)
    with Service(rewound.folder, settings, say=notices.append) as service:
        monkeypatch.setattr(service_module, "load_rerouter", load)
        monkeypatch.setattr(warm_up, "check_maps", check_maps)
        monkeypatch.setattr(Loop, "is_alive", True)
        for _ in range(2):
            assert not service.follower.poll()
        assert (tried, notices) == ([1], [notices[0]]), "it is read, and said, once"
        assert str(problem) in notices[0]
        assert "the document router re-routes" in notices[0]
        assert service.dispatcher.rerouters == {}
        rewound.publish()
        assert service.follower.poll()
        assert service.releases.current.release.phase == 2


def test_a_server_starts_without_a_router_to_re_route_by_that_is_missing(
    rewound, limits, notices, monkeypatch
):
    def load(run, release):
        raise ObjectMissing(file="x")

    monkeypatch.setattr(service_module, "load_rerouter", load)
    settings = ServiceSettings(limits=limits, reroute_every=8)
    with Service(rewound.folder, settings, say=notices.append) as service:
        assert service.dispatcher.rerouters == {}
        assert "the document router re-routes" in notices[0]


def test_a_module_that_is_missing_keeps_the_older_release(service, rewound, notices):
    rewound.publish()
    lost = rewound.file_of(path=3, module="late/0001")
    content = lost.read_bytes()
    lost.unlink()
    for _ in range(3):
        assert not service.follower.poll()
    assert service.releases.current.release.phase == 1
    (sentence,) = notices  # once, however often it polls
    assert "phase 2 is not served" in sentence
    assert lost.name in sentence
    lost.write_bytes(content)
    assert service.follower.poll()


def test_a_store_out_of_reach_breaks_no_module(service, rewound, notices, monkeypatch):
    """What cannot be read now may be whole: it is looked at again, and what is served goes on."""

    def out_of_reach(objects, receipt):
        raise StoreUnreachable(url="s3://bucket", seconds=60, problem="no route to host")

    served = service.releases.current
    rewound.publish()
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "file", out_of_reach)
        for look in (service.follower.verify_current, service.follower.poll):
            service.follower._try(look)
    assert [problem_of(service, path) for path in range(4)] == [None] * 4
    assert service.releases.current is served
    assert all("s3://bucket could not be reached" in sentence for sentence in notices)
    assert service.follower.poll()
    assert service.releases.current.release.phase == 2


@pytest.mark.parametrize("every_seconds", [None, 0.01])
def test_a_store_out_of_reach_at_the_start_is_asked_again(
    service, rewound, notices, monkeypatch, every_seconds
):
    """For the modules of the release that is served: one of them is missing."""
    is_told, num_tries = threading.Event(), 0

    def file(objects, receipt, file=Objects.file):
        nonlocal num_tries
        num_tries += 1
        if num_tries <= 2:
            raise StoreUnreachable(url="s3://bucket", seconds=60, problem="no route to host")
        return file(objects, receipt)

    def say(digest, problem):
        notices.append(problem)
        is_told.set()

    monkeypatch.setattr("dipaco.serving.release_follower.RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Objects, "file", file)
    monkeypatch.setattr(service.health, "_on_change", say)
    release = service.releases.current.release
    lost = rewound.folder / release.objects[release.paths[3]["late/0001"]].name
    lost.unlink()
    service.follower.start(every_seconds)
    assert is_told.wait(10)
    time.sleep(0.3)
    num_tries_so_far = num_tries
    time.sleep(0.1)
    service.follower.stop()
    assert lost.name in notices[-1]
    assert num_tries == num_tries_so_far, "once all was looked at, it is not read again"


def other_router(body):
    body["companions"]["router"] = "0" * 32
    return body


def two_phases_in_one(body):
    first, second = body["paths"][0], body["paths"][1]
    first["early/0000"] = second["late/0001"]  # another object under the same name
    return body


def one_path_missing(body):
    return body | {"paths": body["paths"][:3]}


def unknown_module(body):
    body["paths"][0]["early/0009"] = body["paths"][0].pop("early/0000")
    return body


def object_missing(body):
    del body["objects"][body["paths"][0]["early/0000"]]
    return body


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (other_router, "another router"),
        (two_phases_in_one, "path 1 has another early/0000"),
        (one_path_missing, "3 paths, and the run 4"),
        (unknown_module, "path 0 is made of"),
        (object_missing, "it does not say where early/0000 is stored"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_inconsistent_release_is_refused(service, rewound, notices, change, problem):
    rewound.publish(change)
    assert not service.follower.poll()
    assert problem in notices[0]
    assert service.releases.current.release.phase == 1
    rewound.unpublish()
    rewound.publish()
    assert service.follower.poll()


def test_a_run_whose_first_release_is_inconsistent_is_not_served(rewound, settings):
    rewound.publish(other_router)
    with pytest.raises(ReleaseInconsistent, match="another router"):
        Service(rewound.folder, settings)


def test_a_release_chosen_by_phase_stays(rewound, notices, limits):
    rewound.publish()
    pinned = ServiceSettings(phase=1, limits=limits)
    with Service(rewound.folder, pinned, say=notices.append) as service:
        service.start()
        assert service.releases.current.release.phase == 1
        service.follower.stop()  # it has verified that release, and did not poll
        assert service.releases.current.release.phase == 1
    with pytest.raises(NotAvailable, match="at phase 7"):
        Service(rewound.folder, ServiceSettings(phase=7))


def test_a_broken_module_is_tried_again_after_a_while(service):
    now = [0.0]
    health = ReleaseHealth(clock=lambda: now[0])
    modules = service.releases.current.modules_of(3)
    digest = next(iter(modules.values())).digest
    health.mark_broken(digest, "it is gone.")
    assert "it is gone" in health.problem_of(modules)
    now[0] = 31.0
    assert health.problem_of(modules) is None
    health.mark_broken(digest, "it is gone.")
    health.mark_whole(digest)
    assert health.problem_of(modules) is None


@pytest.mark.parametrize("holds_parts", [True, False])
def test_the_operator_is_told_what_a_broken_module_does_where_paths_are_held_elsewhere(
    service, notices, monkeypatch, holds_parts
):
    """A front end with replicas does not know which paths are in memory."""
    monkeypatch.setattr(service, "_holds_parts", holds_parts)
    served = service.releases.current
    finish(service, begin(service, path=3))
    digest = served.release.paths[3]["late/0001"]
    service.health.mark_broken(digest, "it is gone.")
    cache = service.cache if holds_parts else PathCache(service.engine._load, 0)
    paths = PathAdmission(cache, service.health.problem_of)
    assert (paths.problem_of(served.modules_of(3)) is None) == holds_parts
    (sentence,) = notices
    assert "paths 1, 3 answer 503" in sentence
    assert ("unless they are in memory" in sentence) == holds_parts
