"""The models of one server: the served arm of a run, and its other arms for comparison.

A run `quickstart` is served as the model `quickstart`; each other arm that has a release is a model
beside it, `quickstart/dense`. All have the sizes of one path, so they share the loop, the compiled
programs and the memory of paths. An arm without a choice of path is not routed.

A request finishes on the modules of the release it began in, the next one gets the newer release.
That takes over only if it is one consistent set and every module of it is *whole*: its bytes can be
read and match its digest. At the start there is no older release to fall back on, so whole paths
are served and the others answer with their problem.
"""

import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dipaco.control.planning.release import Release
from dipaco.control.planning.summaries import Routed
from dipaco.errors import DipacoError, NoSuchPath
from dipaco.runs.run import Run
from dipaco.serving.errors import NoSuchModel, PathElsewhere, PathsDisagree, ReleaseInconsistent
from dipaco.serving.path_cache import Modules
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects
from dipaco.topology import Topology
from dipaco.topology.cells import listed

RETRY_SECONDS = 30.0  # before what could not be read is tried again


def is_routed(run: Run, release: Release) -> bool:
    """True if there is a choice: several paths, which are not all alike."""
    arm = run.plan.arm(release.arm)
    return arm.is_routed and arm.topology.num_paths > 1


class ServedRelease:
    """A release with its digest, and the receipts of every path's modules."""

    def __init__(self, release: Release, is_routed: bool):
        self.release, self.digest, self.is_routed = release, release.digest, is_routed
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
        """A sentence about a module that is not whole, or is whole again (`problem` is None). None
        if this release has no such module. With `knows_memory`, paths in memory are served.
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

    def __init__(self, first: Release, is_routed: bool):
        self.is_routed = is_routed
        self._in_use: weakref.WeakValueDictionary[str, ServedRelease] = (
            weakref.WeakValueDictionary()
        )
        self.swap(first)

    def swap(self, release: Release) -> None:
        """Makes a release the one that new requests get."""
        served = ServedRelease(release, self.is_routed)
        self._in_use[served.digest] = served
        self.current = served

    def find(self, digest: str) -> ServedRelease | None:
        """The release that a running request began in. It exists while the request refers to it."""
        return self._in_use.get(digest)


def check_consistent(run: Run, release: Release) -> None:
    """Raises `ReleaseInconsistent` for another router, tokenizer or topology than the run's."""

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
    `on_change` is called with a digest and its problem, once for each. None = whole again.
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
    objects: Objects, release: Release, health: ReleaseHealth, paths: Sequence[int] | None = None
) -> dict[str, str]:
    """Reads every byte of some paths of a release, None = all, and records in `health` which
    modules are whole. Returns the problems of those that are not. Raises `StoreFault`: a module
    could not be read now, which says nothing about its bytes.
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


class PathShard(NamedTuple):
    """The documents that a path was trained on."""

    documents: int
    domains: dict[str, int]  # documents of each, the most first


class ServedModel:
    """An arm under its name, and its release. `run` is opened by the calling thread."""

    def __init__(self, run: Run, name: str, release: Release):
        self.name, self.arm = name, release.arm
        self.topology: Topology = run.plan.arm(release.arm).topology
        self.is_routed = is_routed(run, release)
        self.releases = ServedReleases(release, self.is_routed)
        self._shards: dict[int, list[PathShard]] = {}  # keys are the phases of their routing
        self._routed_at = run.plan.arm(release.arm).routed_at
        self.read_shards(run, release)

    def path_name(self, path: int) -> str:
        """The name by which requests ask for one path of it, as exports are called."""
        return f"{self.name}/path_{path:04d}"

    def read_shards(self, run: Run, release: Release) -> None:
        """Reads the documents that the paths of a release were trained on."""
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
      paths: of a cell, which routes nothing and has no other arms. None = all.
      read_paths: paths whose bytes are read before a newer release is served. None = all.

    Raises `ReleaseInconsistent`: the release of the served arm is not one consistent set.
    """

    def __init__(
        self,
        run: Run,
        release: Release,
        phase: int | None,
        health: ReleaseHealth,
        say: Callable[[str], object],
        has_others: bool = True,
        paths: Sequence[int] | None = None,
        read_paths: Sequence[int] | None = None,
    ):
        self._has_others, self._paths = has_others and paths is None, paths
        self._phase, self._health, self._say = phase, health, say
        self._read_paths = read_paths
        # Called with a newer release before it is served: whether its prompts can be routed.
        self.add_router: Callable[[Run, Release], bool] = lambda run, release: True
        # Called with the release that is served and with a newer one, to read its modules first.
        self.preload: Callable[[ServedRelease, ServedRelease], object] = lambda now, newer: None
        self._refused: set[tuple[str, int, str]] = set()  # each is said once
        check_consistent(run, release)
        self.main = ServedModel(run, run.config.name, release)
        self.main.is_routed &= paths is None
        self._models = {self.main.name: self.main}
        self.follow(run, is_start=True)

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
        """As `named`, and the path if the name is a path's."""
        if name and (found := re.fullmatch(r"(.+)/path_(\d{4,6})", name)):
            return self.named(found[1]), int(found[2])
        return self.named(name), None

    def asked(self, name: str | None, path: int | None) -> tuple[ServedModel, int | None]:
        """The model and the path that a request asks for, in its field or by the model's name.
        Raises `NoSuchModel`, `NoSuchPath` or `PathElsewhere`: they are not here. `PathsDisagree`.
        """
        model, named = self.find(name)
        if None not in (path, named) and path != named:
            raise PathsDisagree(given=path, named=named)
        path = path if named is None else named
        if path is not None:
            model.releases.current.modules_of(path)
        if self._paths is not None and path not in self._paths:
            first = self.main.path_name(self._paths[0])
            raise PathElsewhere(paths=listed(self._paths), name=first)
        return model, path

    @property
    def routed(self) -> ServedModel | None:
        """The one whose prompts are routed, if there is one: a run has one arm of several paths."""
        return next((model for model in self if model.is_routed), None)

    def current(self) -> list[ServedRelease]:
        """The releases that new requests get."""
        return [model.releases.current for model in self]

    def follow(self, run: Run, *, is_start: bool = False) -> bool:
        """Takes up newer releases, and arms that have their first one. Returns whether there is a
        newer one of the main model. At the start bytes are not read beforehand: there is no older
        release to stay with. `run` is opened by the calling thread.
        """
        before = self.main.releases.current
        for arm in (each.name for each in (*run.plan.arms, run.plan.base)):
            is_main = arm == self.main.arm
            if not is_main and not self._has_others:
                continue
            name = self.main.name if is_main else f"{self.main.name}/{arm}"
            model, newest = self._models.get(name), self._release(run, arm)
            now = -1 if model is None else model.releases.current.release.phase
            if newest is None or newest.phase <= now:
                continue
            try:
                self._take_up(run, name, newest, is_start)
            except DipacoError as error:
                self._refuse(newest, str(error))
        return self.main.releases.current is not before

    def _take_up(self, run: Run, name: str, newest: Release, is_start: bool) -> None:
        check_consistent(run, newest)
        if not is_start:
            if problems := read_all(run.objects, newest, self._health, self._read_paths):
                self._refuse(newest, next(iter(problems.values())))
                return
            if not self.add_router(run, newest):
                self._refuse(newest, "its prompts can be routed after a restart of this server")
                return
        if (model := self._models.get(name)) is None:
            self._models = self._models | {name: ServedModel(run, name, newest)}
            return
        model.read_shards(run, newest)
        self.preload(model.releases.current, ServedRelease(newest, model.releases.is_routed))
        model.releases.swap(newest)
        self._say(f"serving the release of `{newest.arm}` at phase {newest.phase} from now on")

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
