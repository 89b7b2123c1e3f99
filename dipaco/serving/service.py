"""One run, being served: its tokenizer, router, releases, path cache and loop, side by side.

What a front end (HTTP, or the command line) needs to turn a text into a request of the loop. Opened
in one thread; afterwards every method may be called from any.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import jax
import numpy as np

from dipaco.config import MODULAR
from dipaco.data.tokenizer import PADDING
from dipaco.errors import DipacoError, ObjectDamaged, ObjectMissing
from dipaco.model.inference import prepare
from dipaco.receipt import Receipt
from dipaco.runs.run import Run, open_run
from dipaco.serving.dispatch import Choice, Dispatcher, dispatch
from dipaco.serving.loop import Loop, LoopLimits
from dipaco.serving.path_cache import Parts, PathCache
from dipaco.serving.releases import Follower, Health, Releases, Served, check_is_one_set
from dipaco.serving.text import token_bytes
from dipaco.store.address import Address
from dipaco.store.tensors import load_tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """How a run is served."""

    arm: str = MODULAR
    phase: int | None = None  # stay with the release of this phase; None = follow the newest
    path_bytes: int | None = None  # of all paths in memory; None = half of what is free
    look_seconds: float = 5.0  # between looks for a newer release
    reroute_every: int | None = None  # tokens made before the path is chosen anew; None = never
    limits: LoopLimits = LoopLimits()


class Service:
    """See the module. Use as `with Service(folder, settings) as service`."""

    def __init__(
        self,
        folder: Path | Address,
        settings: ServiceSettings | None = None,
        say: Callable[[str], None] = lambda sentence: print(sentence, file=sys.stderr, flush=True),
        on_cold: Callable[[float], object] = lambda seconds: None,
    ):
        """Opens the run; nothing is compiled and no thread is started yet.

        Args:
          folder: of the run, or its URL.
          settings: how it is served.
          say: told a sentence for the operator.
          on_cold: told the seconds that a path took which was not in memory.

        Raises:
          NotYet: the run has no release yet.
          ReleaseMixed: its release is not one consistent set.
          BadTokenizer, CorpusDamaged, ObjectMissing, ...: what is needed whatever the path.
        """
        self.settings = settings or ServiceSettings()
        self.say = say
        self.run: Run = open_run(folder)
        try:
            self._open(folder, on_cold)
        except BaseException:
            self.run.ledger.close()
            raise

    def _open(self, folder: Path | Address, on_cold: Callable[[float], object]) -> None:
        run, settings = self.run, self.settings
        release = run.ledger.release(settings.arm, settings.phase)
        check_is_one_set(run, release)
        self.name, self.model = run.config.name, run.config.model
        self.prefix_tokens = run.config.routing.prefix_tokens
        self.topology = run.plan.arm(settings.arm).topology
        self.tokenizer = run.corpus.tokenizer()
        self.token_bytes = token_bytes(self.tokenizer)
        self.stop_ids = frozenset({self.tokenizer.library.token_to_id(PADDING)} - {None})
        self._dispatcher = Dispatcher(run, release) if len(release.paths) > 1 else None

        self.releases, self.health = Releases(release), Health()
        self.cache = PathCache(self._load, settings.path_bytes or _half_of_free_bytes(), on_cold)
        self.loop = Loop(self.model, self._parts_of, limits=settings.limits)
        self.follower = Follower(folder, self.releases, self.health, self._read_ahead, self.say)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_) -> None:
        self.stop(drain_seconds=0.0)
        self.run.ledger.close()

    def start(self) -> None:
        """Compiles everything, then starts the loop and the follower.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: not a single path can be served.
        """
        self.say("compiling for requests of any length; it takes longest the first time")
        self.warm_up()
        self.loop.run()
        is_pinned = self.settings.phase is not None
        self.follower.start(None if is_pinned else self.settings.look_seconds)

    def warm_up(self) -> None:
        """Compiles what a load can need, with the first path that is whole."""
        if self._dispatcher is not None:
            self._dispatcher.ask(np.zeros(1, np.int32), self.releases.now.release)
        served = self.releases.now
        for path in range(served.num_paths):
            try:
                with self.cache.pin(served.modules_of(path)) as parts:
                    return self.loop.warm_up(parts)
            except (ObjectMissing, ObjectDamaged):
                if path == served.num_paths - 1:
                    raise
        return None

    def stop(self, drain_seconds: float) -> None:
        """Finishes what runs, at most for so long, and ends both threads."""
        self.follower.stop()
        self.loop.stop(drain_seconds)

    @property
    def loop_is_alive(self) -> bool:
        """Whether tokens can be made at all."""
        return self.loop.is_alive

    def choose(self, served: Served, prompt: np.ndarray, path: int | None = None) -> Choice:
        """Which path takes a prompt (int32 [tokens]). Raises `NoSuchPath`."""
        if path is not None:
            served.modules_of(path)
        return dispatch(self.run, served.release, prompt, path, self._dispatcher)

    def problem_of(self, served: Served, path: int) -> str | None:
        """Why a path cannot be served, as far as is known."""
        return self.health.problem_of(served.modules_of(path))

    @contextlib.contextmanager
    def _parts_of(self, digest: str, path: int) -> Generator[Parts]:
        with self.cache.pin(self.releases.of(digest).modules_of(path)) as parts:
            yield parts

    def _load(self, receipt: Receipt) -> Parts:
        try:
            parts = prepare(self.model, load_tree(self.run.objects, receipt))
        except (ObjectMissing, ObjectDamaged) as error:
            self.health.is_broken(receipt.digest, str(error))
            raise
        self.health.is_whole(receipt.digest)
        return parts

    def _read_ahead(self, run: Run, newer: Served) -> None:
        """Reads the router of a newer release, and those of its paths that are in use now, as far
        as there is room.
        """
        now = self.releases.now
        if self._dispatcher is not None:
            self._dispatcher.learn(run, newer.release)
        with contextlib.suppress(DipacoError):
            for path in range(now.num_paths):
                if self.cache.holds(now.modules_of(path)):
                    with self.cache.pin(newer.modules_of(path)):
                        pass


def _half_of_free_bytes() -> int:
    """Half of what the device, or the machine where that is the device, has free."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return (stats["bytes_limit"] - stats.get("bytes_in_use", 0)) // 2
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
