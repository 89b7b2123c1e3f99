"""The models of one server: the served arm of a run, and its other arms for comparison.

A run `quickstart` is served as the model `quickstart`; each other arm that has a release is a model
beside it, `quickstart/dense`. All have the sizes of one path, so they share the loop, the compiled
programs and the memory of paths. An arm without a choice of path is not routed.

A request finishes on the modules of the release it began in, the next one gets the newer release.
That takes over only if it is one consistent set and every module of it is *whole*: its bytes can be
read and match its digest. At the start there is no older release to fall back on, so whole paths
are served and the others answer with their problem.
"""

import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dipaco.control.planning.release import Release
from dipaco.control.planning.summaries import Routed
from dipaco.errors import DipacoError, NoSuchPath
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.serving.dispatch import is_routed
from dipaco.serving.errors import NoSuchModel, ReleaseInconsistent
from dipaco.serving.path_cache import Modules
from dipaco.store.address import Where
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects
from dipaco.topology import Topology

RETRY_SECONDS = 30.0  # before what could not be read is tried again
_log = logging.getLogger("dipaco")


class ServedRelease:
    """A release with its digest, and the receipts of every path's modules."""

    def __init__(self, release: Release):
        self.release, self.digest = release, release.digest
        self._paths = [release.modules_of(path) for path in range(len(release.paths))]

    @property
    def num_paths(self) -> int:
        return len(self._paths)

    def modules_of(self, path: int) -> Modules:
        """The modules of a path. Raises `NoSuchPath`."""
        if not 0 <= path < self.num_paths:
            raise NoSuchPath(path=path, last=self.num_paths - 1)
        return self._paths[path]

    def health_message(self, digest: str, problem: str | None, *, knows_memory: bool) -> str | None:
        """A sentence about a module that is not whole, or is whole again (`problem` is None).

        None if this release has no such module.

        Args:
          knows_memory: True: it is known which paths are in memory, and these are served whatever
            has become of their bytes.
        """
        paths = [p for p, modules in enumerate(self.release.paths) if digest in modules.values()]
        if not paths:
            return None
        (module, *_) = [m for m, d in self.release.paths[paths[0]].items() if d == digest]
        if problem is None:
            return f"module {module} of paths {_first_eight(paths)} is whole again"
        listed = _first_eight(paths)
        answer = f"paths {listed} answer 503" + " unless they are in memory" * knows_memory
        return f"module {module} is not whole, so {answer}: {problem}"


def _first_eight(paths: Sequence[int]) -> str:
    return ", ".join(map(str, paths[:8])) + (f" and {len(paths) - 8} more" * (len(paths) > 8))


class ServedReleases:
    """The current release of an arm, and the older ones that running requests began in."""

    def __init__(self, first: Release):
        self._in_use: weakref.WeakValueDictionary[str, ServedRelease] = (
            weakref.WeakValueDictionary()
        )
        self.swap(first)

    def swap(self, release: Release) -> None:
        """Makes a release the one that new requests get."""
        served = ServedRelease(release)
        self._in_use[served.digest] = served
        self.current = served

    def find(self, digest: str) -> ServedRelease | None:
        """The release that a running request began in. It exists while the request refers to it."""
        return self._in_use.get(digest)


def check_consistent(run: Run, release: Release) -> None:
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
    digests: dict[str, str] = {}  # digest of each module: the same in all paths through it
    for path, modules in enumerate(release.paths):
        if set(modules) != {str(module) for module in topology.modules_of(path)}:
            refuse(f"path {path} is made of {', '.join(modules)}")
        for module, digest in modules.items():
            stops_early = run.plan.arm(release.arm).hold_out > 0
            if digests.setdefault(module, digest) != digest and not stops_early:
                refuse(f"path {path} has another {module} than the paths before it")
            if digest not in release.objects or release.objects[digest].digest != digest:
                refuse(f"it does not say where {module} is stored")


class ReleaseHealth:
    """Modules that could not be read, and the reasons. Each is tried again after `RETRY_SECONDS`.

    Args:
      on_change: called with a digest and its problem, once for each problem. None = whole again.
      clock: seconds.
    """

    def __init__(
        self,
        on_change: Callable[[str, str | None], object] = lambda digest, problem: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._on_change, self._clock = on_change, clock
        self._broken: dict[str, tuple[float, str]] = {}  # digest -> (when, problem)

    def mark_broken(self, digest: str, problem: str) -> None:
        _, before = self._broken.get(digest, (0.0, None))
        self._broken[digest] = (self._clock(), problem)
        if problem != before:
            self._on_change(digest, problem)

    def mark_whole(self, digest: str) -> None:
        if self._broken.pop(digest, None):
            self._on_change(digest, None)

    def problem_of(self, modules: Modules) -> str | None:
        """The known problem of a path's modules, if any."""
        for module, receipt in modules.items():
            since, problem = self._broken.get(receipt.digest, (0.0, ""))
            if problem and self._clock() - since < RETRY_SECONDS:
                return f"Module {module} is not whole: {problem}"
        return None


def read_all(
    objects: Objects,
    release: Release,
    health: ReleaseHealth,
    paths: Sequence[int] | None = None,
) -> dict[str, str]:
    """Reads every byte of a release and records in `health` which modules are whole.

    Args:
      paths: only their modules are read. None = all.

    Returns:
      module -> problem, for modules that are not whole.

    Raises:
      StoreUnreachable, ...: a module could not be read now. That says nothing about its bytes.
    """
    problems: dict[str, str] = {}
    read = range(len(release.paths)) if paths is None else paths
    for module, digest in sorted({item for path in read for item in release.paths[path].items()}):
        try:
            objects.file(release.objects[digest])
            health.mark_whole(digest)
        except (ObjectMissing, ObjectDamaged) as error:
            health.mark_broken(digest, str(error))
            problems[module] = str(error)
    return problems


class ReleaseFollower:
    """Polls a run that is still training for newer releases, in a separate thread.

    Args:
      folder: of the run, or its URL. It is opened at each poll, since a connection belongs to one
        thread.
      releases: swapped when there is a newer release.
      prepare: called with the run, as this thread opened it, and a newer release before the swap,
        to read its modules first.
      say: called with a sentence for the operator.
      on_poll: called with the run at each poll, for changes that come without a newer release.
      others: the releases, of other arms, that are verified at the start as well.
      paths: those whose bytes are verified. None = all.
    """

    def __init__(
        self,
        folder: Where,
        releases: ServedReleases,
        health: ReleaseHealth,
        prepare: Callable[[Run, ServedRelease], None],
        say: Callable[[str], None],
        on_poll: Callable[[Run], object] = lambda run: None,
        others: Callable[[], Sequence[ServedRelease]] = lambda: (),
        paths: Sequence[int] | None = None,
    ):
        self._paths = paths
        self._on_poll, self._others = on_poll, others
        self._folder, self._releases, self._health = folder, releases, health
        self._prepare, self._say = prepare, say
        self._refused: set[tuple[int, str]] = set()  # phase and problem: each is reported once
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> bool:
        """Looks for a newer release once. Returns True if one is served now."""
        current = self._releases.current.release
        with reading(self._folder) as run:
            self._on_poll(run)
            newest = run.ledger.facts.release(current.arm)
            if newest.phase <= current.phase:
                return False
            try:
                check_consistent(run, newest)
            except ReleaseInconsistent as error:
                return self._refuse(newest, str(error))
            if problems := read_all(run.objects, newest, self._health, self._paths):
                return self._refuse(newest, next(iter(problems.values())))
            self._prepare(run, ServedRelease(newest))
        self._releases.swap(newest)
        self._say(f"serving the release of `{newest.arm}` at phase {newest.phase} from now on")
        return True

    def verify_current(self) -> None:
        """Reads every byte of the current release, then of the other arms'."""
        with reading(self._folder) as run:
            for served in (self._releases.current, *self._others()):
                read_all(run.objects, served.release, self._health, self._paths)

    def start(self, every_seconds: float | None) -> None:
        """Verifies the current release, again until all of it could be looked at, and polls at this
        interval. None = never polls.
        """
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
        wait_seconds = RETRY_SECONDS if every_seconds is None else every_seconds
        is_verified = self._try(self.verify_current)
        while not (is_verified and every_seconds is None):
            if self._stopped.wait(wait_seconds):
                return
            is_verified = is_verified or self._try(self.verify_current)
            if every_seconds is not None:
                self._try(self.poll)

    def _try(self, action: Callable[[], object]) -> bool:
        """True if the action came to its end. Otherwise the operator is told the reason."""
        try:
            action()
            return True
        except (DipacoError, OSError) as error:  # such as a busy ledger or a moved folder
            self._say(f"could not read {self._folder}: {error}")
        except Exception as error:  # whatever it is, the release that is served goes on
            _log.error("the newest release could not be looked at", exc_info=error)
            self._say(f"could not look at {self._folder}: {type(error).__name__}: {error}")
        return False


class PathShard(NamedTuple):
    """The documents that a path was trained on."""

    documents: int
    domains: dict[str, int]  # documents of each, the most first


class ServedModel:
    """An arm of the run under its name, and the release of it that new requests get.

    Args:
      run: opened by the calling thread.
      name: by which requests ask for it.
      release: the first that is served.
    """

    def __init__(self, run: Run, name: str, release: Release):
        self.name, self.arm = name, release.arm
        self.topology: Topology = run.plan.arm(release.arm).topology
        self.is_routed = is_routed(run, release)
        self.releases = ServedReleases(release)
        self._shards: dict[int, list[PathShard]] = {}  # keys are the phases of their routing
        self._routed_at = run.plan.arm(release.arm).routed_at
        self.read_shards(run, release)

    def path_name(self, path: int) -> str:
        """The name by which requests ask for one path of it, as exports are called."""
        return f"{self.name}/path_{path:04d}"

    def read_shards(self, run: Run, release: Release) -> None:
        """Reads the documents that the paths of a release were trained on. `run` is opened by this
        thread.
        """
        phase = self._routed_at(release.phase)
        if not self.is_routed or phase in self._shards:
            return
        routed = Routed.of(run.routing_of(release.arm, release.phase))
        domains = routed.domains or [{} for _ in routed.documents]
        self._shards[phase] = [
            PathShard(number, dict(sorted(of_path.items(), key=lambda item: -item[1])))
            for number, of_path in zip(routed.documents, domains, strict=True)
        ]

    def shards_of(self, served: ServedRelease) -> list[PathShard] | None:
        """The documents of each path. None = its paths have no shards."""
        return self._shards.get(self._routed_at(served.release.phase))


class ServedModels:
    """All models of a server, the one that is named like the run first.

    Args:
      run: opened by the calling thread.
      release: of the served arm.
      phase: serve other arms' releases of this phase if they have one. None = the newest.
      say: called with a sentence for the operator.
      has_others: False: other arms are left out.
    """

    def __init__(
        self,
        run: Run,
        release: Release,
        phase: int | None,
        health: ReleaseHealth,
        say: Callable[[str], object],
        has_others: bool = True,
    ):
        self._has_others = has_others
        self._phase, self._health, self._say = phase, health, say
        # Called before a newer release of another arm is served: whether its prompts can be routed.
        self.prepare: Callable[[Run, Release], bool] = lambda run, release: True
        self._refused: set[tuple[str, int, str]] = set()  # each is said once
        self.main = ServedModel(run, run.config.name, release)
        self._models = {self.main.name: self.main}
        self.follow_others(run, is_start=True)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def named(self, name: str | None) -> ServedModel:
        """The model of a name. None = the one that is named like the run. Raises `NoSuchModel`."""
        if name is None:
            return self.main
        if model := self._models.get(name):
            return model
        known = ", ".join(f"`{known}`" for known in self._models)
        raise NoSuchModel(name=name[:100], known=known)

    def find(self, name: str | None) -> tuple[ServedModel, int | None]:
        """As `named`, and the path if the name is that of a path."""
        if name and (found := re.fullmatch(r"(.+)/path_(\d{4,6})", name)):
            return self.named(found[1]), int(found[2])
        return self.named(name), None

    def release_of(self, digest: str) -> ServedRelease:
        """The release, of any model, that a running request began in."""
        for model in self:
            if (served := model.releases.find(digest)) is not None:
                return served
        raise KeyError(digest)

    @property
    def routed(self) -> ServedModel | None:
        """The one whose prompts are routed, if there is one: a run has one arm of several paths."""
        return next((model for model in self if model.is_routed), None)

    def current(self) -> list[ServedRelease]:
        """The releases that new requests get."""
        return [model.releases.current for model in self]

    def follow_others(self, run: Run, *, is_start: bool = False) -> None:
        """Takes up newer releases of the other arms, and arms that have their first one.

        Args:
          run: opened by the calling thread.
          is_start: bytes are not read beforehand: there is no older release to stay with.
        """
        for arm in (each.name for each in (*run.plan.arms, run.plan.base)):
            if arm == self.main.arm or not self._has_others:
                continue
            name = f"{self.main.name}/{arm}"
            model = self._models.get(name)
            newest = self._release(run, arm)
            if newest is None or (
                model is not None and newest.phase <= model.releases.current.release.phase
            ):
                continue
            try:
                self._take_up(run, name, newest, is_start)
            except DipacoError as error:
                self._refuse(newest, str(error))

    def _take_up(self, run: Run, name: str, newest: Release, is_start: bool) -> None:
        check_consistent(run, newest)
        if not is_start:
            if not self.prepare(run, newest):
                self._refuse(newest, "its prompts can be routed after a restart of this server")
                return
            if problems := read_all(run.objects, newest, self._health):
                self._refuse(newest, next(iter(problems.values())))
                return
        if (model := self._models.get(name)) is None:
            self._models = self._models | {name: ServedModel(run, name, newest)}
        else:
            model.read_shards(run, newest)
            model.releases.swap(newest)

    def leave_out(self, model: ServedModel, problem: str) -> None:
        """Serves one of the other models no longer, and says why."""
        self._models = {name: each for name, each in self._models.items() if each is not model}
        self._refuse(model.releases.current.release, problem)

    def _release(self, run: Run, arm: str) -> Release | None:
        """The release of the phase that is served, if the arm has one, else the newest."""
        phases = [phase for name, phase in run.ledger.facts.releases() if name == arm]
        if not phases:
            return None
        phase = self._phase if self._phase in phases else max(phases)
        return run.ledger.facts.release(arm, phase)

    def _refuse(self, release: Release, problem: str) -> None:
        if (release.arm, release.phase, problem) not in self._refused:
            self._refused.add((release.arm, release.phase, problem))
            self._say(f"`{release.arm}` at phase {release.phase} is not served: {problem}")
