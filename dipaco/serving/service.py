"""A served run: its tokenizer, router, releases and engine.

It holds everything that turns text into a request of the loop. It is opened in one thread.
Afterwards every method may be called from any thread.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from dipaco.config import MODULAR
from dipaco.control.planning.release import Release
from dipaco.control.planning.summaries import Prepared
from dipaco.errors import DipacoError
from dipaco.routing.config import LIKELIHOOD
from dipaco.runs.opening import open_run
from dipaco.runs.run import Run
from dipaco.serving.continuation import vocabulary_of
from dipaco.serving.decoding.grammar import Grammars
from dipaco.serving.decoding.grammar_trial import GrammarTrial
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.dispatch import (
    Dispatcher,
    PathChoice,
    RoutingStats,
    choice_of,
    choice_without_router,
    is_routed,
    without_start,
)
from dipaco.serving.engine import EngineSpec, InProcessEngine
from dipaco.serving.errors import NoRoomForPath, PathElsewhere, TooManyMaps
from dipaco.serving.models import (
    ReleaseFollower,
    ReleaseHealth,
    ServedModels,
    ServedRelease,
    check_consistent,
)
from dipaco.serving.path_cache import Modules, PathCache
from dipaco.serving.prefix_scores import PathComparison
from dipaco.serving.rerouting import Rerouter, load_rerouter
from dipaco.serving.text import text_starts, token_bytes
from dipaco.serving.warm_up import WarmUp
from dipaco.store.address import Where
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.topology.cells import listed

if TYPE_CHECKING:
    from dipaco.serving.upstreams import Upstreams


API_KEY = "key "  # with it begin the names of clients that have one


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Settings by which a run is served."""

    arm: str = MODULAR
    phase: int | None = None  # serve the release of this phase. None = follow the newest
    # Bytes of all paths in memory. None = the bytes that the rows leave free.
    path_bytes: int | None = None
    poll_seconds: float = 5.0  # between polls for a newer release
    rule: str | None = None  # rule by which prompts are routed. None = the run's `routing.rule`
    reroute_every: int | None = None  # new tokens before the path is chosen again. None = never
    limits: LoopLimits = LoopLimits()
    paths: tuple[int, ...] | None = None  # paths that a cell serves, by name. None = all, routed
    has_others: bool = True  # the run's other arms are models beside it


def print_notice(sentence: str) -> None:
    """Writes a line for the operator to standard error."""
    print(sentence, file=sys.stderr, flush=True)


class Service:
    """Use as `with Service(folder, settings) as service`."""

    def __init__(
        self,
        folder: Where,
        settings: ServiceSettings | None = None,
        say: Callable[[str], None] = print_notice,
        on_cold: Callable[[float], object] = lambda seconds: None,
        upstreams: "Upstreams | None" = None,
    ):
        """Opens the run. Nothing is compiled and no thread is started yet.

        Args:
          folder: of the run, or its URL.
          say: called with a sentence for the operator.
          on_cold: called with the seconds it took to load a path that was not in memory.
          upstreams: servers that take the place of the engine. None = this process decodes.

        Raises:
          NotAvailable: the run has no release yet.
          ReleaseInconsistent: its release is not one consistent set.
          BadTokenizer, CorpusDamaged, ObjectMissing, ...: something that every path needs is bad.
        """
        self.settings = settings or ServiceSettings()
        self.say = say
        self.run: Run = open_run(folder)
        try:
            self._open(folder, on_cold, upstreams)
        except BaseException:
            self.run.ledger.close()
            raise

    def _open(
        self,
        folder: Where,
        on_cold: Callable[[float], object],
        upstreams: "Upstreams | None",
    ) -> None:
        run, settings = self.run, self.settings
        release = run.ledger.facts.release(settings.arm, settings.phase)
        check_consistent(run, release)
        self.name, self.model = run.config.name, run.config.model
        self.prefix_tokens = run.config.data.prefix_tokens
        self.tokenizer = run.corpus.tokenizer()
        self.token_bytes = token_bytes(self.tokenizer, self.model.vocab_size)
        self.text_starts = text_starts(self.tokenizer, self.token_bytes)
        self.longest_token_bytes = 1 + max(map(len, self.token_bytes))  # and a space after it
        self.edges, self.edge_names = run.corpus.edges.tokens, run.corpus.edge_names
        self.stop_ids = self.edges.stop_ids
        vocabulary = vocabulary_of(run)
        self._trial = GrammarTrial(vocabulary)
        self.grammars = Grammars(vocabulary, self._trial.problem)
        self.token_ids = vocabulary.token_ids()
        # Example prompts. Runs of older versions have none.
        self.examples = Prepared.of(run.stage("prepare")).examples

        self.health = ReleaseHealth(self._report_module)
        self.models = ServedModels(
            run,
            release,
            settings.phase,
            self.health,
            self.say,
            has_others=settings.has_others and settings.paths is None,
        )
        if settings.paths is not None:
            self.models.main.is_routed = False
        # Fields of the arm that is served under the run's name.
        self.releases, self.topology = self.models.main.releases, self.models.main.topology
        self.engine = upstreams or InProcessEngine(
            EngineSpec(
                address=run.address,
                objects=run.objects,
                model=self.model,
                limits=settings.limits,
                path_bytes=settings.path_bytes,
                topology=self.topology,
                paths=settings.paths,
                modules_of=self._modules_of,
                health=self.health,
                on_cold=on_cold,
                grammars=self.grammars,
            )
        )
        self.cache, self.loop = self.engine.cache, self.engine.loop
        self._holds_parts = upstreams is None
        self._dispatcher: Dispatcher | None = None
        if (routed := self.models.routed) is not None:
            cache = self.cache if self._holds_parts else None
            first = routed.releases.current.release
            try:
                self._dispatcher = Dispatcher(run, first, settings.rule, cache)
            except DipacoError as error:
                if routed is self.models.main:
                    raise
                self.models.leave_out(routed, str(error))
        self.models.prepare = self._add_router
        # Keys are release digests. It is empty without re-routing, or when the document router does
        # it.
        self._rerouters: dict[str, Rerouter] = {}
        self._without_rerouter: set[str] = set()  # releases whose own cannot be used
        self._load_new_rerouter(run)
        self.follower = ReleaseFollower(
            folder,
            self.releases,
            self.health,
            self._preload,
            self.say,
            on_poll=self._on_poll,
            others=self.models.current,
            paths=settings.paths if self._holds_parts else (),
        )

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_) -> None:
        self.stop(drain_seconds=0.0)
        self.run.ledger.close()

    def start(self, warm_up: WarmUp | None = None) -> None:
        """Makes the engine ready and starts the follower.

        Args:
          warm_up: runs the programs that are compiled. None = in silence.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: no path can be served.
        """
        self.say("compiling for requests of any length; slowest the first time")
        warm_up = warm_up or WarmUp()
        programs = [
            *(() if self._dispatcher is None else self._dispatcher.programs()),
            *(program for each in self._rerouters.values() for program in each.programs()),
        ]
        warm_up.expect(len(programs) + self.engine.num_programs)
        warm_up.run(programs)
        is_said = self.releases.current.digest in self._without_rerouter
        if self.settings.reroute_every and not self._rerouters and not is_said:
            self.say(
                "texts are re-routed by the document router: this release has no router that was "
                "trained for it (`reroute.every`)"
            )
        self.engine.start(self.releases.current, warm_up)
        is_pinned = self.settings.phase is not None
        self.follower.start(None if is_pinned else self.settings.poll_seconds)

    def stop(self, drain_seconds: float) -> None:
        """Lets running requests finish for at most so long, and ends the threads."""
        self.follower.stop()
        self.loop.stop(drain_seconds)
        self._trial.close()

    def routing_stats(self) -> RoutingStats:
        """The cost of routing prompts so far."""
        return RoutingStats() if self._dispatcher is None else self._dispatcher.stats()

    def score_meaning(self, served: ServedRelease) -> str | None:
        """The meaning of the router's scores in words. None = nothing is routed."""
        if self._dispatcher is None or not is_routed(self.run, served.release):
            return None
        return self._dispatcher.score_meaning(served.release)

    @property
    def loop_problem(self) -> str | None:
        """The reason why the loop makes no tokens, in words. None = it can."""
        return self.loop.problem

    def begin_routing(
        self,
        served: ServedRelease,
        prompt: np.ndarray,
        path: int | None = None,
        client: str = "",
    ) -> PathChoice | PathComparison:
        """The path of a prompt, int32 [tokens], or the paths that must read the prompt first: a
        `PromptRouter` has them do so. `path` overrides the router. Raises `NoSuchPath`,
        `PathElsewhere`.

        Args:
          client: what another API key has routed takes as long as what none has.
        """
        if path is not None:
            served.modules_of(path)
        here = self.settings.paths
        if here is not None and path not in here:
            raise PathElsewhere(paths=listed(here), name=self.models.main.path_name(here[0]))
        given = choice_without_router(self.run, served.release, path)
        if given is not None or (dispatcher := self._dispatcher) is None:
            assert given is not None, "a release that is routed has a dispatcher"
            return given
        key = client if client.startswith(API_KEY) else ""
        begun = dispatcher.begin(prompt, served.release, key)
        if isinstance(begun, PathComparison):
            return begun
        return choice_of(served.release, dispatcher.rule, *begun)

    def end_routing(self, served: ServedRelease, comparison: PathComparison) -> PathChoice:
        """The likeliest path, once every path of a shortlist has scored a prompt."""
        return choice_of(served.release, LIKELIHOOD, *comparison.result())

    @property
    def routing_cache(self) -> PathCache | None:
        """Keeps the paths that read prompts. None = prompts are routed by features."""
        return None if self._dispatcher is None else self._dispatcher.cache

    def num_routed(self, prompt: np.ndarray) -> int:
        """Number of a prompt's tokens, int32 [tokens], that the router reads."""
        return min(len(self.text_of(prompt)), self.prefix_tokens)

    def text_of(self, prompt: np.ndarray) -> np.ndarray:
        """The tokens of a prompt, int32 [tokens], that the router reads: without the start token
        before it.
        """
        return without_start(prompt, self.edges.start)

    def rerouter_of(self, served: ServedRelease) -> Rerouter | None:
        """The router that was trained to re-route. None = the document router does it."""
        return self._rerouters.get(served.digest)

    def problem_of(self, served: ServedRelease, path: int) -> str | None:
        """The known reason why a path cannot be served, if any. One in memory can be, whatever has
        become of its bytes.
        """
        modules = served.modules_of(path)
        problem = self.health.problem_of(modules)
        if problem and self._holds_parts and self.cache.contains(modules):
            return None
        return problem

    def paths_of(self, served: ServedRelease) -> Sequence[int]:
        """The paths of a release that are served here."""
        return range(served.num_paths) if self.settings.paths is None else self.settings.paths

    def not_whole(self, served: ServedRelease) -> dict[int, str]:
        """path -> the known problem with its bytes, whether or not it is in memory."""
        return {
            path: problem
            for path in self.paths_of(served)
            if (problem := self.health.problem_of(served.modules_of(path)))
        }

    def _report_module(self, digest: str, problem: str | None) -> None:
        knows = self._holds_parts
        for model in self.models:
            served = model.releases.current
            if sentence := served.health_message(digest, problem, knows_memory=knows):
                is_main = model is self.models.main
                self.say(sentence if is_main else f"`{model.name}`: {sentence}")
                return

    def _on_poll(self, run: Run) -> None:
        self._load_new_rerouter(run)
        self.models.follow_others(run)

    def _load_new_rerouter(self, run: Run) -> None:
        """Loads a re-routing router, which appears after its release. If it cannot be used, the
        release goes without. `run` is opened by this thread.
        """
        served = self.releases.current
        has_looked = served.digest in self._rerouters or served.digest in self._without_rerouter
        if self.settings.reroute_every is None or has_looked:
            return
        try:
            rerouter = load_rerouter(run, served.release)
            if rerouter is not None and self.loop.is_alive:
                WarmUp().run(rerouter.programs())
        except (ObjectMissing, ObjectDamaged, TooManyMaps) as error:
            self._without_rerouter.add(served.digest)
            self.say(
                f"the document router re-routes the texts of this release, until a restart: {error}"
            )
            return
        if rerouter is not None:
            self._rerouters = {served.digest: rerouter}

    def _modules_of(self, release: str, path: int) -> Modules:
        return self.models.release_of(release).modules_of(path)

    def _add_router(self, run: Run, release: Release) -> bool:
        """Reads the router of a newer release. Returns whether its prompts can be routed."""
        if not is_routed(run, release):
            return True
        if self._dispatcher is not None:
            self._dispatcher.add_release(run, release)
        return self._dispatcher is not None

    def _preload(self, run: Run, newer: ServedRelease) -> None:
        """Reads a newer release's router, and its versions of the cached paths that fit beside the
        paths that are served now.
        """
        current = self.releases.current
        self.models.main.read_shards(run, newer.release)
        self._add_router(run, newer.release)
        served = (newer, *self.models.current())
        kept = {digest for each in served for digest in each.release.objects}
        with contextlib.suppress(DipacoError):
            for path in range(current.num_paths):
                if self.cache.contains(current.modules_of(path)):
                    self._read_beside(newer.modules_of(path), kept)

    def _read_beside(self, modules: Modules, kept: Set[str]) -> None:
        """Reads a path if it fits into memory beside the paths of modules that are kept."""
        with contextlib.suppress(NoRoomForPath):
            pin = self.cache.reserve(modules, kept)
            try:
                pin.read()
            finally:
                pin.close()
