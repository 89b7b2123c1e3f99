"""The release that new requests get, and how it changes while the run goes on training.

A request begins in one release and finishes on its modules; the next request gets the newer one. A
newer release takes over only when it is one consistent set and every module of it is whole. At the
beginning there is nothing to fall back on: what is whole is served, and the other paths say what is
wrong with them.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from dipaco.control.release import Release
from dipaco.errors import DipacoError, NoSuchPath
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.serving.errors import ReleaseInconsistent
from dipaco.serving.path_cache import Modules
from dipaco.store.address import Address
from dipaco.store.objects import Objects

RETRY_SECONDS = 30.0  # a module that could not be read is tried again after that


class ServedRelease:
    """A release as it is served: named by its digest, its paths as receipts."""

    def __init__(self, release: Release):
        self.release, self.digest = release, release.digest
        self._paths = [release.modules_of(path) for path in range(len(release.paths))]

    @property
    def num_paths(self) -> int:
        return len(self._paths)

    def modules_of(self, path: int) -> Modules:
        """What a path is made of. Raises `NoSuchPath`."""
        if not 0 <= path < self.num_paths:
            raise NoSuchPath(path=path, last=self.num_paths - 1)
        return self._paths[path]

    def told_of(self, digest: str, problem: str | None) -> str | None:
        """A sentence about a module that is not whole, or is again; None where it has none such."""
        paths = [p for p, modules in enumerate(self.release.paths) if digest in modules.values()]
        if not paths:
            return None
        (module, *_) = [m for m, its in self.release.paths[paths[0]].items() if its == digest]
        if problem is None:
            return f"module {module} of paths {_few(paths)} is whole again"
        return f"module {module} is not whole, so paths {_few(paths)} answer 503: {problem}"


def _few(paths: Sequence[int]) -> str:
    return ", ".join(map(str, paths[:8])) + (f" and {len(paths) - 8} more" * (len(paths) > 8))


class ServedReleases:
    """The release of an arm that is served now, and those that running requests began in."""

    def __init__(self, first: Release):
        self._alive: weakref.WeakValueDictionary[str, ServedRelease] = weakref.WeakValueDictionary()
        self.swap(first)

    def swap(self, release: Release) -> None:
        """New requests get this one from now on."""
        served = ServedRelease(release)
        self._alive[served.digest] = served
        self.now = served

    def of(self, digest: str) -> ServedRelease:
        """The release that a running request began in: whoever waits for it holds it."""
        return self._alive[digest]


def check_is_one_set(run: Run, release: Release) -> None:
    """Raises `ReleaseInconsistent` unless the release was made with this run's router and tokenizer
    and has the modules of the topology.
    """

    def refuse(problem: str) -> None:
        raise ReleaseInconsistent(arm=release.arm, phase=release.phase, problem=problem)

    routing = run.routing_of(release.arm, release.phase)
    for stage, companion in ((run.stage("prepare"), "tokenizer"), (routing, "router")):
        if release.companions.get(companion) != stage.artifacts[companion].digest:
            refuse(f"it was made with another {companion} than the run has")
    topology = run.plan.arm(release.arm).topology
    if len(release.paths) != topology.num_paths:
        refuse(f"it has {len(release.paths)} paths, and the run {topology.num_paths}")
    digests: dict[str, str] = {}  # of a module, the same in all paths that go through it
    for path, modules in enumerate(release.paths):
        if set(modules) != {str(module) for module in topology.modules_of(path)}:
            refuse(f"path {path} is made of {', '.join(modules)}")
        for module, digest in modules.items():
            stops_early = run.plan.arm(release.arm).stops_early
            if digests.setdefault(module, digest) != digest and not stops_early:
                refuse(f"path {path} has another {module} than the paths before it")
            if digest not in release.objects or release.objects[digest].digest != digest:
                refuse(f"nobody knows where {module} lies")


class ReleaseHealth:
    """Modules that could not be read, and why; they are tried again after a while.

    Args:
      tell: called with a digest and what is wrong with it, each problem once; None: it is whole
        again.
      clock: seconds.
    """

    def __init__(
        self,
        tell: Callable[[str, str | None], object] = lambda digest, problem: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._tell, self._clock = tell, clock
        self._broken: dict[str, tuple[float, str]] = {}  # digest -> when, what was wrong

    def mark_broken(self, digest: str, problem: str) -> None:
        _, before = self._broken.get(digest, (0.0, None))
        self._broken[digest] = (self._clock(), problem)
        if problem != before:
            self._tell(digest, problem)

    def mark_whole(self, digest: str) -> None:
        if self._broken.pop(digest, None):
            self._tell(digest, None)

    def problem_of(self, modules: Modules) -> str | None:
        """What is wrong with a path, or None as far as is known."""
        for module, receipt in modules.items():
            since, problem = self._broken.get(receipt.digest, (0.0, ""))
            if problem and self._clock() - since < RETRY_SECONDS:
                return f"Module {module} is not whole: {problem}"
        return None


def read_all(objects: Objects, release: Release, health: ReleaseHealth) -> dict[str, str]:
    """Reads every byte of a release; module -> what is wrong with it, for those that are not whole.

    What it finds is remembered in `health`.
    """
    problems: dict[str, str] = {}
    for module, digest in sorted({item for path in release.paths for item in path.items()}):
        try:
            objects.file(release.objects[digest])
            health.mark_whole(digest)
        except DipacoError as error:
            health.mark_broken(digest, str(error))
            problems[module] = str(error)
    return problems


class ReleaseFollower:
    """Looks for newer releases of a run that goes on training, in a thread of its own.

    Args:
      folder: of the run, or its URL; opened anew at each look, since a connection belongs to one
        thread.
      releases: what is served; swapped when there is a newer one.
      health: what is known of modules.
      prepare: called with the run, as this thread opened it, and a newer release before that is
        served, to read what will be wanted first.
      say: told a sentence for the operator.
      glance: called with the run at each look; for what may come without a newer release.
    """

    def __init__(
        self,
        folder: Path | Address,
        releases: ServedReleases,
        health: ReleaseHealth,
        prepare: Callable[[Run, ServedRelease], None],
        say: Callable[[str], None],
        on_poll: Callable[[Run], object] = lambda run: None,
    ):
        self._on_poll = on_poll
        self._folder, self._releases, self._health = folder, releases, health
        self._prepare, self._say = prepare, say
        self._refused: set[tuple[int, str]] = set()  # phase and problem: each is said once
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> bool:
        """One look; True where a newer release is served now."""
        now = self._releases.now.release
        with reading(self._folder) as run:
            self._on_poll(run)
            newest = run.ledger.facts.release(now.arm)
            if newest.phase <= now.phase:
                return False
            try:
                check_is_one_set(run, newest)
            except ReleaseInconsistent as error:
                return self._refuse(newest, str(error))
            if problems := read_all(run.objects, newest, self._health):
                return self._refuse(newest, next(iter(problems.values())))
            self._prepare(run, ServedRelease(newest))
        self._releases.swap(newest)
        self._say(f"serving the release of `{newest.arm}` at phase {newest.phase} from now on")
        return True

    def check(self) -> None:
        """Reads every byte of the release that is served."""
        with reading(self._folder) as run:
            read_all(run.objects, self._releases.now.release, self._health)

    def start(self, every_seconds: float | None) -> None:
        """Checks what is served, then looks for newer ones that often; None = stays with it."""
        self._thread = threading.Thread(
            target=self._run, args=(every_seconds,), name="release-follower", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _refuse(self, release: Release, problem: str) -> bool:
        if (release.phase, problem) not in self._refused:
            self._refused.add((release.phase, problem))
            self._say(f"phase {release.phase} is not served: {problem}")
        return False

    def _run(self, every_seconds: float | None) -> None:
        self._try(self.check)
        while every_seconds is not None and not self._stopped.wait(every_seconds):
            self._try(self.look)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (DipacoError, OSError) as error:  # a ledger that is busy, a folder that is moved
            self._say(f"could not look at {self._folder}: {error}")
