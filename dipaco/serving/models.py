"""The models of one server: the served arm of a run, and its other arms for comparison.

A run `quickstart` is served as the model `quickstart`; each other arm that has a release is a model
beside it, `quickstart/dense`. All have the sizes of one path, so they share the loop, the compiled
programs and the memory of paths. An arm without a choice of path is not routed.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dipaco.control.planning.release import Release
from dipaco.control.planning.summaries import Routed
from dipaco.errors import DipacoError
from dipaco.runs.run import Run
from dipaco.serving.dispatch import is_routed
from dipaco.serving.errors import NoSuchModel
from dipaco.serving.releases import (
    ReleaseHealth,
    ServedRelease,
    ServedReleases,
    check_consistent,
    read_all,
)
from dipaco.topology import Topology


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
