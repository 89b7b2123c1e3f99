"""A serving engine over a grid of paths with random parameters, and loads of many of its paths."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dipaco.model.config import ModelConfig, part_names
from dipaco.model.spec import describe
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.mixing import Rows, StepTimes
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest, Token
from dipaco.serving.engine import InProcessEngine
from dipaco.serving.memory import zero_path
from dipaco.serving.models import ReleaseHealth
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import Modules
from dipaco.store.address import Address
from dipaco.store.tensors import save_tree
from dipaco.topology import PER_PATH, Level, Topology, grid

PROMPT = 16  # tokens
MIXED_PROMPTS, MIXED_ANSWERS = (8, 64), (4, 60)  # tokens, the fewest and the most
ROWS = 64


def square(config: ModelConfig, side: int) -> Topology:
    """A `side` x `side` grid, or one path for side 1."""
    return grid(part_names(config), (side, side) if side > 1 else (1,))


def square_with_embeddings(config: ModelConfig, side: int) -> Topology:
    """The same grid, with a private embedding for each path."""
    levels = [
        Level(
            name=level.name,
            parts=tuple(part for part in level.parts if part != "embed"),
            experts=level.experts,
        )
        for level in square(config, side).levels
    ]
    own = Level(name="embedding", parts=("embed",), experts=PER_PATH)
    return Topology(levels=(*levels, own))


class Asked(NamedTuple):
    """A request: for which path, after how many tokens, for how many."""

    path: int
    prompt_tokens: int
    new_tokens: int


class Load(NamedTuple):
    """The result for clients that ask one request after another."""

    tokens_per_second: float
    first_token_seconds: list[float]  # one for each request, in the order of arrival


class Together(StepTimes):
    """Times by which a step for several paths is always the sooner."""

    def of(self, rows: Rows, slots: int) -> float:
        return float(isinstance(rows, int))


class ManyPaths:
    """An engine in this process over random modules, which lie in a folder.

    Args:
      config: sizes of a path.
      topology: the run's.
      folder: for the modules.
      shares_steps: whether rows of several paths may share a step.
      cached_paths: number of whole paths that fit beside each other. None = all.
      always_together: rows of several paths share every possible step, not only where that is
        estimated to be sooner.
    """

    def __init__(
        self,
        config: ModelConfig,
        topology: Topology,
        folder: Path,
        shares_steps: bool = True,
        cached_paths: int | None = None,
        always_together: bool = False,
    ):
        self._vocab_size, self.num_paths = config.vocab_size, topology.num_paths
        address = Address.of(folder)
        objects, specs = address.objects(), describe(config)
        rng = np.random.default_rng(0)
        draw = lambda spec: rng.normal(0, 0.05, spec.shape).astype(np.float32)  # noqa: E731
        stored = {}
        for module in topology.modules:
            own = {part: jax.tree.map(draw, specs[part]) for part in topology.parts_of(module)}
            stored[module] = save_tree(objects, "module", own)
        self._modules: list[Modules] = [
            {module: stored[module] for module in topology.modules_of(path)}
            for path in range(topology.num_paths)
        ]
        path_bytes = None
        if cached_paths is not None:
            held = {
                m: r
                for modules in self._modules[:: self.num_paths // cached_paths]
                for m, r in modules.items()
            }
            shared = {m: r for m, r in stored.items() if topology.fan_in(m) > 1}
            path_bytes = sum(receipt.num_bytes for receipt in (held | shared).values())
        engine = InProcessEngine(
            objects,
            config,
            LoopLimits(rows=ROWS, rows_per_path=ROWS),
            ReleaseHealth(),
            path_bytes=path_bytes,
            topology=topology if shares_steps else None,
        )
        self.loop, self.cache = engine.loop, engine.cache
        if always_together:
            self.loop.mixer.times = Together(config, ())
        self._rng = np.random.default_rng(1)

    def request(self, path: int, new_tokens: int, prompt: Sequence[int] | int = PROMPT):
        """Greedy, after this prompt or so many random tokens."""
        if isinstance(prompt, int):
            prompt = self._rng.integers(1, self._vocab_size, prompt).tolist()
        return GenerationRequest(
            prompt_ids=tuple(prompt),
            path=path,
            modules=self._modules[path],
            max_new_tokens=new_tokens,
        )

    def decode_seconds(self, paths: Sequence[int], new_tokens: int) -> float:
        """Seconds of decoding, without the prompts, for a request of each of these paths. The loop
        has no thread yet.
        """
        for path in paths:
            self.loop.submit(self.request(path, new_tokens))
        before = self.loop.stats()
        while self.loop.run_once():
            pass
        now = self.loop.stats()
        assert now.num_tokens - before.num_tokens == len(paths) * new_tokens
        return now.decode_seconds - before.decode_seconds

    def compile(self) -> None:
        """Every program, as a server does at its start."""
        self.loop.warm_up(zero_path(self.loop.config))

    def load(self, asked: Sequence[Asked], clients: int = ROWS) -> Load:
        """Lets clients share out these requests, the last one first. Each asks for one after the
        other.
        """
        if not self.loop.is_alive:
            self.loop.run()
        return asyncio.run(self._load(list(asked), clients))

    def stop(self) -> None:
        """Ends the loop's thread."""
        self.loop.stop(0)

    async def _load(self, asked: list[Asked], clients: int) -> Load:
        admission, first_tokens = PathAdmission(self.cache), []
        events = asyncio.get_running_loop()

        async def client() -> None:
            while asked:
                (path, prompt_tokens, new_tokens), started = asked.pop(), time.perf_counter()
                blocks: asyncio.Queue[Sequence[Token | Finish]] = asyncio.Queue()

                def give(items: Sequence[Token | Finish], blocks: asyncio.Queue = blocks) -> None:
                    events.call_soon_threadsafe(blocks.put_nowait, items)

                async with admission.pinned(self._modules[path], "bench"):
                    self.loop.submit(self.request(path, new_tokens, prompt_tokens), give)
                    end = (await blocks.get())[-1]
                    first_tokens.append(time.perf_counter() - started)
                    while not isinstance(end, Finish):
                        end = (await blocks.get())[-1]
                    if end.error is not None:
                        raise end.error

        num_tokens, started = sum(each.new_tokens for each in asked), time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return Load(num_tokens / (time.perf_counter() - started), first_tokens)


def evenly(number: int, num_paths: int) -> list[int]:
    """Paths of so many requests, as evenly as can be."""
    if number < num_paths:
        return [each * num_paths // number for each in range(number)]
    return [each % num_paths for each in range(number)]


def at_random(number: int, num_paths: int, seed: int) -> list[int]:
    """Paths of so many requests, each of them any."""
    return np.random.default_rng(seed).integers(num_paths, size=number).tolist()


def skewed(number: int, num_paths: int, seed: int = 0) -> list[int]:
    """The same where path k is asked for in proportion to 1 / (k + 1)."""
    weights = 1 / np.arange(1, num_paths + 1)
    rng = np.random.default_rng(seed)
    return rng.choice(num_paths, number, p=weights / weights.sum()).tolist()


def alike(paths: Sequence[int], new_tokens: int) -> list[Asked]:
    """Requests of one length."""
    return [Asked(path, PROMPT, new_tokens) for path in paths]


def mixed(paths: Sequence[int], seed: int) -> list[Asked]:
    """Requests whose lengths are drawn, evenly, from `MIXED_PROMPTS` and `MIXED_ANSWERS`."""
    fewest, most = zip(MIXED_PROMPTS, MIXED_ANSWERS, strict=True)
    lengths = np.random.default_rng(seed).integers(fewest, most, (len(paths), 2), endpoint=True)
    return [Asked(path, *own) for path, own in zip(paths, lengths.tolist(), strict=True)]
