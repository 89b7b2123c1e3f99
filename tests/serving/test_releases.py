"""Following a run: a newer release takes over when it is whole, and nobody's request is dropped."""

import numpy as np
import pytest

from dipaco.control.errors import NotAvailable
from dipaco.serving.decoding.stream import Finish, GenerationRequest
from dipaco.serving.errors import ReleaseInconsistent
from dipaco.serving.releases import ReleaseHealth, ServedReleases, check_is_one_set
from dipaco.serving.service import Service, ServiceSettings


@pytest.fixture
def said():
    return []


@pytest.fixture
def settings(limits):
    return ServiceSettings(limits=limits)


@pytest.fixture
def service(rewound, said, settings):
    with Service(rewound.folder, settings, say=said.append) as service:
        yield service


def begin(service, path=0, tokens=6):
    """A request that has been let in, with the release it began in; the loop stands still."""
    told = []
    served = service.releases.now
    keep_alive = lambda item, served=served: told.append(item)  # noqa: E731
    service.loop.submit(
        GenerationRequest(
            prompt_ids=(5, 6, 7), path=path, release=served.digest, max_new_tokens=tokens
        ),
        keep_alive,
    )
    return told


def finish(service, *requests):
    """Turns the loop until they are over; the ids of each."""
    while not all(told and isinstance(told[-1], Finish) for told in requests):
        assert service.loop.run_once()
    for told in requests:
        assert told[-1].reason == "length", told[-1].error
    return [[token.id for token in told[:-1]] for told in requests]


def test_requests_finish_on_the_release_they_began_in_and_the_next_get_the_newer(
    service, rewound, said, settings
):
    assert service.releases.now.release.phase == 1
    (alone,) = finish(service, begin(service))
    running = begin(service)
    rewound.publish()
    assert service.follower.look()
    later = begin(service)
    old, new = finish(service, running, later)
    assert old == alone
    assert service.releases.now.release.phase == 2
    # It says what the newer release says, as a service that began with it would.
    with Service(rewound.folder, settings, say=said.append) as fresh:
        assert finish(fresh, begin(fresh)) == [new]
    assert "phase 2 from now on" in said[0]


def test_a_newer_release_is_found_once_and_an_old_one_is_let_go(service, rewound):
    assert not service.follower.look()
    first = service.releases.now.digest
    rewound.publish()
    assert service.follower.look()
    assert not service.follower.look()
    with pytest.raises(KeyError):
        service.releases.of(first)


def test_paths_in_use_are_read_before_the_swap(service, rewound):
    finish(service, begin(service, path=2))
    assert service.cache.stats().paths == 1
    rewound.publish()
    service.follower.look()
    now = service.releases.now
    assert [service.cache.contains(now.modules_of(path)) for path in range(4)] == [0, 0, 1, 0]


def test_a_module_that_is_missing_keeps_the_older_release(service, rewound, said):
    rewound.publish()
    lost = rewound.file_of(path=3, module="late/0001")
    content = lost.read_bytes()
    lost.unlink()
    for _ in range(3):
        assert not service.follower.look()
    assert service.releases.now.release.phase == 1
    (sentence,) = said  # once, however often it looks
    assert "phase 2 is not served" in sentence
    assert lost.name in sentence
    lost.write_bytes(content)
    assert service.follower.look()


def other_router(body):
    body["companions"]["router"] = "0" * 32
    return body


def two_phases_in_one(body):
    first, second = body["paths"][0], body["paths"][1]
    first["early/0000"] = second["late/0001"]  # another object under the same name
    return body


def a_path_less(body):
    return body | {"paths": body["paths"][:3]}


def a_module_of_nobody(body):
    body["paths"][0]["early/0009"] = body["paths"][0].pop("early/0000")
    return body


def bytes_of_nobody(body):
    del body["objects"][body["paths"][0]["early/0000"]]
    return body


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (other_router, "another router"),
        (two_phases_in_one, "path 1 has another early/0000"),
        (a_path_less, "3 paths, and the run 4"),
        (a_module_of_nobody, "path 0 is made of"),
        (bytes_of_nobody, "nobody knows where early/0000 lies"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mixed_set_is_refused_with_what_is_mixed(service, rewound, said, change, problem):
    rewound.publish(change)
    assert not service.follower.look()
    assert problem in said[0]
    assert service.releases.now.release.phase == 1
    rewound.unpublish()
    rewound.publish()
    assert service.follower.look()


def test_a_run_whose_release_is_mixed_is_not_served_at_all(rewound, settings):
    rewound.publish(other_router)
    with pytest.raises(ReleaseInconsistent, match="another router"):
        Service(rewound.folder, settings)


def test_a_release_that_is_asked_for_by_phase_stays(rewound, said, limits):
    rewound.publish()
    pinned = ServiceSettings(phase=1, limits=limits)
    with Service(rewound.folder, pinned, say=said.append) as service:
        service.start()
        assert service.releases.now.release.phase == 1
        service.follower.stop()  # it has looked at what is there, and at nothing newer
        assert service.releases.now.release.phase == 1
    with pytest.raises(NotAvailable, match="at phase 7"):
        Service(rewound.folder, ServiceSettings(phase=7))


def test_a_release_of_this_run_is_one_set(service):
    check_is_one_set(service.run, service.releases.now.release)


def test_what_was_broken_is_tried_again_after_a_while(service):
    now = [0.0]
    health = ReleaseHealth(clock=lambda: now[0])
    modules = service.releases.now.modules_of(3)
    digest = next(iter(modules.values())).digest
    health.mark_broken(digest, "it is gone.")
    assert "it is gone" in health.problem_of(modules)
    now[0] = 31.0
    assert health.problem_of(modules) is None
    health.mark_broken(digest, "it is gone.")
    health.mark_whole(digest)
    assert health.problem_of(modules) is None


def test_a_release_is_known_while_somebody_holds_it(service):
    release = service.releases.now.release
    releases = ServedReleases(release)
    held = releases.now
    releases.swap(release._replace(phase=9))
    assert releases.of(held.digest) is held
    assert releases.now.digest != held.digest


def test_the_router_is_asked_once_for_what_it_has_seen(service, monkeypatch):
    served, prompt = service.releases.now, np.arange(5, dtype=np.int32)
    first = service.choose(served, prompt)
    monkeypatch.setattr("dipaco.serving.dispatch.document_features", None)
    again = service.choose(served, prompt)
    assert (again.path, again.scores) == (first.path, first.scores)
