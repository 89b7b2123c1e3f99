"""A served run: its tokenizer, router, releases and engine.

It holds everything that turns text into a request of the loop. It is opened in one thread.
Afterwards every method may be called from any thread.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dipaco.config import MODULAR
from dipaco.control.planning.release import Release
from dipaco.control.planning.summaries import Prepared
from dipaco.errors import DipacoError
from dipaco.runs.opening import open_run
from dipaco.runs.run import Run
from dipaco.serving.continuation import vocabulary_of
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.grammar import Grammars
from dipaco.serving.decoding.grammar_trial import GrammarTrial
from dipaco.serving.dispatch import Dispatcher, RoutingStats
from dipaco.serving.engine import InProcessEngine
from dipaco.serving.errors import NoRoomForPath, TooManyMaps
from dipaco.serving.models import ReleaseHealth, ServedModels, ServedRelease, is_routed
from dipaco.serving.release_follower import ReleaseFollower
from dipaco.serving.rerouting import load_rerouter
from dipaco.serving.text import text_starts, token_bytes
from dipaco.serving.warm_up import WarmUp
from dipaco.store.address import Where
from dipaco.store.errors import ObjectDamaged, ObjectMissing

if TYPE_CHECKING:
    from dipaco.serving.upstreams import Upstreams


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    arm: str = MODULAR
    phase: int | None = None  # serve the release of this phase. None = follow the newest
    # Bytes of all paths in memory. None = the bytes that the rows leave free.
    path_bytes: int | None = None
    poll_seconds: float = 5.0  # between polls for a newer release
    rule: str | None = None  # rule by which prompts are routed. None = the run's `routing.rule`
    reroute_every: int | None = None  # new tokens before the path is chosen again. None = never
    limits: LoopLimits = LoopLimits()
    paths: tuple[int, ...] | None = None  # paths that a cell serves, by name. None = all, routed


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
        self, folder: Where, on_cold: Callable[[float], object], upstreams: "Upstreams | None"
    ) -> None:
        run, settings = self.run, self.settings
        release = run.ledger.facts.release(settings.arm, settings.phase)
        self.name, self.model = run.config.name, run.config.model
        self.prefix_tokens = run.config.data.prefix_tokens
        self.tokenizer = run.corpus.tokenizer()
        self.token_bytes = token_bytes(self.tokenizer, self.model.vocab_size)
        self.text_starts = text_starts(self.tokenizer, self.token_bytes)
        self.longest_token_bytes = 1 + max(map(len, self.token_bytes))  # and a space after it
        self.edges = run.corpus.edges.tokens
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
            has_others=upstreams is None,
            paths=settings.paths,
            read_paths=settings.paths if upstreams is None else (),
        )
        # Fields of the arm that is served under the run's name.
        self.releases, self.topology = self.models.main.releases, self.models.main.topology
        self.engine = upstreams or InProcessEngine(
            run.objects,
            self.model,
            settings.limits,
            self.health,
            path_bytes=settings.path_bytes,
            topology=self.topology,
            paths=settings.paths,
            on_cold=on_cold,
            grammars=self.grammars,
        )
        self.cache, self.loop = self.engine.cache, self.engine.loop
        self._holds_parts = upstreams is None
        self.dispatcher: Dispatcher | None = None
        if (routed := self.models.routed) is not None:
            cache = self.cache if self._holds_parts else None
            first = routed.releases.current.release
            try:
                self.dispatcher = Dispatcher(run, first, settings.rule, cache)
            except DipacoError as error:
                if routed is self.models.main:
                    raise
                self.models.leave_out(routed, str(error))
        self.models.add_router, self.models.preload = self._add_router, self._preload
        self._without_rerouter: set[str] = set()  # releases whose own cannot be used
        self._load_new_rerouter(run)
        read = settings.paths if self._holds_parts else ()
        given = self.models, self.health, self.say, self._load_new_rerouter, read
        self.follower = ReleaseFollower(folder, *given)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_) -> None:
        self.stop(drain_seconds=0.0)
        self.run.ledger.close()

    def start(self, warm_up: WarmUp | None = None) -> None:
        """Makes the engine ready and starts the follower. `warm_up` runs the programs that are
        compiled, None = in silence. Raises `ObjectMissing`, `ObjectDamaged` or `PathCacheTooSmall`:
        no path can be served.
        """
        self.say("compiling for a first request; slowest the first time")
        rerouters = {} if self.dispatcher is None else self.dispatcher.rerouters
        is_said = self.releases.current.digest in self._without_rerouter
        if self.settings.reroute_every and not rerouters and not is_said:
            how = "this release has no router that was trained for it (`reroute.every`)"
            self.say(f"texts are re-routed by the document router: {how}")
        programs = [] if self.dispatcher is None else self.dispatcher.programs()
        self.engine.start(self.releases.current, warm_up or WarmUp(), programs)
        is_pinned = self.settings.phase is not None
        self.follower.start(None if is_pinned else self.settings.poll_seconds)

    def stop(self, drain_seconds: float) -> None:
        """Lets running requests finish for at most so long, and ends the threads."""
        self.follower.stop()
        self.loop.stop(drain_seconds)
        self._trial.close()

    def routing_stats(self) -> RoutingStats:
        """The cost of routing prompts so far."""
        return RoutingStats() if self.dispatcher is None else self.dispatcher.stats

    def score_meaning(self, served: ServedRelease) -> str | None:
        """The meaning of the router's scores in words. None = nothing is routed."""
        if self.dispatcher is None or not served.is_routed:
            return None
        return self.dispatcher.score_meaning(served.release)

    def paths_of(self, served: ServedRelease) -> Sequence[int]:
        """The paths of a release that are served here."""
        return range(served.num_paths) if self.settings.paths is None else self.settings.paths

    def _report_module(self, digest: str, problem: str | None) -> None:
        for model in self.models:
            served, knows = model.releases.current, self._holds_parts
            if sentence := served.health_message(digest, problem, knows_memory=knows):
                self.say(f"`{model.name}`: " * (model is not self.models.main) + sentence)
                return

    def _load_new_rerouter(self, run: Run) -> None:
        """Loads a re-routing router, which appears after its release. If it cannot be used, the
        release goes without. `run` is opened by this thread.
        """
        served, dispatcher = self.releases.current, self.dispatcher
        if self.settings.reroute_every is None or dispatcher is None:
            return
        if served.digest in dispatcher.rerouters or served.digest in self._without_rerouter:
            return
        try:
            rerouter = load_rerouter(run, served.release)
            if rerouter is not None and self.loop.is_alive:
                WarmUp().run(rerouter.programs())
        except (ObjectMissing, ObjectDamaged, TooManyMaps) as error:
            self._without_rerouter.add(served.digest)
            told = "the document router re-routes the texts of this release, until a restart"
            self.say(f"{told}: {error}")
            return
        if rerouter is not None:
            dispatcher.rerouters = {served.digest: rerouter}

    def _add_router(self, run: Run, release: Release) -> bool:
        """Reads the router of a newer release. Returns whether its prompts can be routed."""
        if not is_routed(run, release):
            return True
        if self.dispatcher is not None:
            self.dispatcher.add_release(run, release)
        return self.dispatcher is not None

    def _preload(self, now: ServedRelease, newer: ServedRelease) -> None:
        """Reads a newer release's versions of the cached paths, as far as they fit beside."""
        served = (newer, *self.models.current())
        kept = {digest for each in served for digest in each.release.objects}
        with contextlib.suppress(DipacoError):
            for path in range(now.num_paths):
                if self.cache.contains(now.modules_of(path)):
                    with contextlib.suppress(NoRoomForPath):
                        self.cache.preload(newer.modules_of(path), kept)
