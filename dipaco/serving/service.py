"""One run, being served: its tokenizer, router, releases and engine, side by side.

What a front end (HTTP, or the command line) needs to turn a text into a request of the loop. Opened
in one thread; afterwards every method may be called from any.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dipaco.config import MODULAR
from dipaco.data.tokenizer import PADDING
from dipaco.errors import DipacoError
from dipaco.runs.opening import open_run
from dipaco.runs.run import Run
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.dispatch import Dispatcher, PathChoice, dispatch
from dipaco.serving.engine import EngineSpec, InProcessEngine, ServingEngine
from dipaco.serving.path_cache import Modules
from dipaco.serving.releases import (
    ReleaseFollower,
    ReleaseHealth,
    ServedRelease,
    ServedReleases,
    check_is_one_set,
)
from dipaco.serving.rerouting import Rerouter, load_rerouter
from dipaco.serving.text import token_bytes
from dipaco.store.address import Address


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """How a run is served."""

    arm: str = MODULAR
    phase: int | None = None  # stay with the release of this phase; None = follow the newest
    path_bytes: int | None = None  # of all paths in memory; None = half of what is free
    poll_seconds: float = 5.0  # between looks for a newer release
    reroute_every: int | None = None  # tokens made before the path is chosen anew; None = never
    limits: LoopLimits = LoopLimits()


class Rerouted(NamedTuple):
    """A path that was chosen anew."""

    path: int
    tokens_read: int  # by the router


def print_notice(sentence: str) -> None:
    """One line on the terminal."""
    print(sentence, file=sys.stderr, flush=True)


class Service:
    """See the module. Use as `with Service(folder, settings) as service`."""

    def __init__(
        self,
        folder: Path | Address,
        settings: ServiceSettings | None = None,
        say: Callable[[str], None] = print_notice,
        on_cold: Callable[[float], object] = lambda seconds: None,
        engine: Callable[[EngineSpec], ServingEngine] = InProcessEngine,
    ):
        """Opens the run; nothing is compiled and no thread is started yet.

        Args:
          folder: of the run, or its URL.
          settings: how it is served.
          say: told a sentence for the operator.
          on_cold: told the seconds that a path took which was not in memory.
          engine: makes what makes the tokens.

        Raises:
          NotAvailable: the run has no release yet.
          ReleaseInconsistent: its release is not one consistent set.
          BadTokenizer, CorpusDamaged, ObjectMissing, ...: what is needed whatever the path.
        """
        self.settings = settings or ServiceSettings()
        self.say = say
        self.run: Run = open_run(folder)
        try:
            self._open(folder, on_cold, engine)
        except BaseException:
            self.run.ledger.close()
            raise

    def _open(
        self,
        folder: Path | Address,
        on_cold: Callable[[float], object],
        engine: Callable[[EngineSpec], ServingEngine],
    ) -> None:
        run, settings = self.run, self.settings
        release = run.ledger.facts.release(settings.arm, settings.phase)
        check_is_one_set(run, release)
        self.name, self.model = run.config.name, run.config.model
        self.prefix_tokens = run.config.routing.prefix_tokens
        self.topology = run.plan.arm(settings.arm).topology
        self.tokenizer = run.corpus.tokenizer()
        self.token_bytes = token_bytes(self.tokenizer)
        self.longest_token_bytes = max(map(len, self.token_bytes))
        self.stop_ids = frozenset({self.tokenizer.library.token_to_id(PADDING)} - {None})
        self._dispatcher = Dispatcher(run, release) if len(release.paths) > 1 else None

        self.releases, self.health = ServedReleases(release), ReleaseHealth(self._tell_of_module)
        self.engine = engine(
            EngineSpec(
                address=run.address,
                objects=run.objects,
                model=self.model,
                limits=settings.limits,
                path_bytes=settings.path_bytes,
                modules_of=self._modules_of,
                health=self.health,
                on_cold=on_cold,
            )
        )
        self.cache, self.loop = self.engine.cache, self.engine.loop
        # By release; empty where texts are not re-routed, or by the document router.
        self._rerouters: dict[str, Rerouter] = {}
        self._look_for_rerouter(run)
        self.follower = ReleaseFollower(
            folder,
            self.releases,
            self.health,
            self._read_ahead,
            self.say,
            on_poll=self._look_for_rerouter,
        )

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_) -> None:
        self.stop(drain_seconds=0.0)
        self.run.ledger.close()

    def start(self) -> None:
        """Makes the engine ready and starts the follower.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: not a single path can be served.
        """
        self.say("compiling for requests of any length; it takes longest the first time")
        if self._dispatcher is not None:
            self._dispatcher.warm_up()
        for rerouter in self._rerouters.values():
            rerouter.warm_up()
        if self.settings.reroute_every and not self._rerouters:
            self.say(
                "texts are re-routed by the document router: this release has no router that was "
                "trained for it (`reroute.every`)"
            )
        self.engine.start(self.releases.now)
        is_pinned = self.settings.phase is not None
        self.follower.start(None if is_pinned else self.settings.poll_seconds)

    def stop(self, drain_seconds: float) -> None:
        """Finishes what runs, at most for so long, and ends the threads."""
        self.follower.stop()
        self.loop.stop(drain_seconds)

    @property
    def loop_is_alive(self) -> bool:
        """Whether tokens can be made at all."""
        return self.loop.is_alive

    def choose(
        self, served: ServedRelease, prompt: np.ndarray, path: int | None = None
    ) -> PathChoice:
        """Which path takes a prompt (int32 [tokens]). Raises `NoSuchPath`."""
        if path is not None:
            served.modules_of(path)
        return dispatch(self.run, served.release, prompt, path, self._dispatcher)

    def reroute(self, served: ServedRelease, text: np.ndarray) -> Rerouted:
        """Which path goes on with a text (int32 [tokens], prompt and what was made of it)."""
        if rerouter := self._rerouters.get(served.digest):
            return Rerouted(rerouter.next_path(text), len(text))
        latest = text[-self.prefix_tokens :]
        return Rerouted(self.choose(served, latest).path, len(latest))

    def problem_of(self, served: ServedRelease, path: int) -> str | None:
        """Why a path cannot be served, as far as is known."""
        return self.health.problem_of(served.modules_of(path))

    def _tell_of_module(self, digest: str, problem: str | None) -> None:
        if sentence := self.releases.now.told_of(digest, problem):
            self.say(sentence)

    def _look_for_rerouter(self, run: Run) -> None:
        """It comes after the release that it is for. `run` is opened by this thread."""
        served = self.releases.now
        if self.settings.reroute_every is None or served.digest in self._rerouters:
            return
        if rerouter := load_rerouter(run, served.release):
            if self.loop.is_alive:
                rerouter.warm_up()
            self._rerouters = {served.digest: rerouter}

    def _modules_of(self, release: str, path: int) -> Modules:
        return self.releases.of(release).modules_of(path)

    def _read_ahead(self, run: Run, newer: ServedRelease) -> None:
        """Reads the router of a newer release, and those of its paths that are in use now, as far
        as there is room.
        """
        now = self.releases.now
        if self._dispatcher is not None:
            self._dispatcher.add_release(run, newer.release)
        with contextlib.suppress(DipacoError):
            for path in range(now.num_paths):
                if self.cache.contains(now.modules_of(path)):
                    with self.cache.pin(newer.modules_of(path)):
                        pass
