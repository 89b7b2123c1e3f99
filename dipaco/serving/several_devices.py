"""An engine over several devices of one process, which share the paths.

A path has one device, on which all rows of it are decoded. Each device has a separate loop with
rows and programs, and memory for the paths that it has been given. Nothing passes between devices.
A module that paths of two devices share is held on both.
"""

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from typing import Any

import jax

from dipaco.errors import BadSetting
from dipaco.receipt import Receipt
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.meter import LoopStats
from dipaco.serving.decoding.step_times import StepTimes
from dipaco.serving.decoding.stream import GenerationRequest, OnItems, Stream
from dipaco.serving.decoding.tiles import LevelShape
from dipaco.serving.engine import EngineSpec, InProcessEngine
from dipaco.serving.path_cache import CacheStats, Modules, PathCache, PathPin
from dipaco.serving.releases import ServedRelease
from dipaco.serving.warm_up import WarmUp
from dipaco.topology import ModuleId

MOST_OTHERS = 64  # models beside the paths of the run, whose devices are remembered


class Placement:
    """Gives each path a device, the same in every release. Paths with numbers beside each other
    have the same one, since they go through the same modules of the first levels. Other models than
    the paths of the run (`dense`, say) get one when they are first asked for, one after the other.
    Modules of one name are the same model while their contents are, and the models asked for last
    keep their device. Any thread may call it.

    Args:
      paths: the modules of each path of the run, in any order.
    """

    def __init__(self, paths: Sequence[Collection[ModuleId]], num_devices: int):
        self._lock = threading.Lock()
        devices = [number * num_devices // len(paths) for number in range(len(paths))]
        # Releases name the modules of a path in another order than its topology does.
        self._device_of = dict(zip(map(frozenset, paths), devices, strict=True))
        # The one asked for longest ago comes first.
        self._others: OrderedDict[frozenset[tuple[ModuleId, Receipt]], int] = OrderedDict()
        self._in_turn = itertools.cycle(range(num_devices))
        self.paths = [
            [number for number, its_device in enumerate(devices) if its_device == device]
            for device in range(num_devices)
        ]
        """The paths of each device, by number."""

    def device_of(self, modules: Modules) -> int:
        """The number of the device that a path has."""
        device = self._device_of.get(frozenset(modules))
        if device is not None:
            return device
        with self._lock:
            key = frozenset(modules.items())
            if key not in self._others:
                self._others[key] = next(self._in_turn)
            self._others.move_to_end(key)
            if len(self._others) > MOST_OTHERS:  # each newer release is another model
                self._others.popitem(last=False)
            return self._others[key]


class PathsOfDevices:
    """The caches of the devices, as one."""

    def __init__(self, caches: Sequence[PathCache], placement: Placement):
        self._caches, self._placement = caches, placement

    @property
    def max_bytes(self) -> int:
        """Bytes of all devices together."""
        return sum(cache.max_bytes for cache in self._caches)

    @property
    def holds_parts(self) -> bool:
        return True

    def pin(self, modules: Modules) -> AbstractContextManager[Any]:
        return self._of(modules).pin(modules)

    def contains(self, modules: Modules) -> bool:
        return self._of(modules).contains(modules)

    def has_room(self, modules: Modules) -> bool:
        return self._of(modules).has_room(modules)

    def count_lookup(self, modules: Modules) -> None:
        self._of(modules).count_lookup(modules)

    def memory_of(self, modules: Modules) -> int:
        """The number of its device."""
        return self._placement.device_of(modules)

    def reserve(self, modules: Modules, kept: Set[str] = frozenset()) -> PathPin:
        return self._of(modules).reserve(modules, kept)

    def stats(self) -> CacheStats:
        """Sums. A module that two devices hold counts twice."""
        return CacheStats(*map(sum, zip(*(cache.stats() for cache in self._caches), strict=True)))

    def _of(self, modules: Modules) -> PathCache:
        return self._caches[self.memory_of(modules)]


class LoopsOfDevices:
    """The loops of the devices, as one: a request goes to its path's device."""

    def __init__(self, loops: Sequence[Loop], spec: EngineSpec, placement: Placement):
        self._loops, self._modules_of, self._placement = loops, spec.modules_of, placement
        self._limits = spec.limits

    @property
    def capacity(self) -> int:
        """Requests that are taken at once: active ones on every device, and as many waiting as on
        one.
        """
        return len(self._loops) * self._limits.rows + self._limits.waiting

    @property
    def is_alive(self) -> bool:
        return all(loop.is_alive for loop in self._loops)

    @property
    def problem(self) -> str | None:
        """The problem of the first loop that has one."""
        return next((problem for loop in self._loops if (problem := loop.problem)), None)

    def submit(self, request: GenerationRequest, on_items: OnItems | None = None) -> Stream:
        """Submits to the loop of the path's device."""
        device = self._placement.device_of(self._modules_of(request.release, request.path))
        return self._loops[device].submit(request, on_items)

    def stats(self) -> LoopStats:
        """Sums. The time to the first token is the mean over the devices that have one."""
        loops = [loop.stats() for loop in self._loops]
        firsts = [each.first_token_seconds for each in loops if each.first_token_seconds]
        return LoopStats(
            num_waiting=sum(each.num_waiting for each in loops),
            rows_per_path={key: rows for each in loops for key, rows in each.rows_per_path.items()},
            num_requests=dict(sum((Counter(each.num_requests) for each in loops), Counter())),
            num_tokens=sum(each.num_tokens for each in loops),
            num_prompt_tokens=sum(each.num_prompt_tokens for each in loops),
            num_prompts_reused=sum(each.num_prompts_reused for each in loops),
            tokens_per_second=sum(each.tokens_per_second for each in loops),
            prefill_seconds=sum(each.prefill_seconds for each in loops),
            decode_seconds=sum(each.decode_seconds for each in loops),
            first_token_seconds=sum(firsts) / max(1, len(firsts)),
            num_paused=sum(each.num_paused for each in loops),
            num_replicas=len(loops),
        )

    def stop(self, drain_seconds: float) -> None:
        """Stops all loops at once."""
        with ThreadPoolExecutor(len(self._loops)) as threads:
            list(threads.map(lambda loop: loop.stop(drain_seconds), self._loops))


class SeveralDevices:
    """An `InProcessEngine` for each of the first devices.

    Args:
      spec: limits and `path_bytes` are of each device.

    Raises:
      BadSetting: there are fewer devices, or the rows do not fit.
    """

    def __init__(self, spec: EngineSpec, num_devices: int):
        devices = jax.local_devices()
        if not 1 <= num_devices <= len(devices):
            expected = f"1 to {len(devices)}, which this process sees"
            raise BadSetting(name="--devices", value=num_devices, expected=expected)
        paths = spec.topology.modules_by_path if spec.topology is not None else ()
        placement = Placement(paths, num_devices)
        self.engines = [
            InProcessEngine(spec, device, num_devices, its_paths)
            for device, its_paths in zip(devices, placement.paths, strict=False)
        ]
        self.cache = PathsOfDevices([each.cache for each in self.engines], placement)
        self.loop = LoopsOfDevices([each.loop for each in self.engines], spec, placement)

    @property
    def num_programs(self) -> int:
        compiled = sum(each.loop.num_programs for each in self.engines)
        return compiled + len({each.loop.mixer.levels for each in self._with_common_steps})

    def start(self, served: ServedRelease | None = None, warm_up: WarmUp | None = None) -> None:
        """Starts all engines. The devices compile at the same time. Then steps are timed, while no
        other device works, once for devices with equal levels.
        """
        warm_up = warm_up or WarmUp()
        with ThreadPoolExecutor(len(self.engines)) as threads:
            compiling = [threads.submit(each.compile, served, warm_up) for each in self.engines]
            try:
                for each in as_completed(compiling):
                    each.result()
            except BaseException:  # one has failed, or Ctrl-C
                warm_up.stop()
                raise
        times: dict[tuple[LevelShape, ...], StepTimes] = {}
        for each in self._with_common_steps:
            mixer = each.loop.mixer
            if mixer.levels not in times:
                each.time_steps(served, warm_up)
                times[mixer.levels] = mixer.times
            mixer.times = times[mixer.levels]
        for each in self.engines:
            each.loop.run()

    @property
    def _with_common_steps(self) -> list[InProcessEngine]:
        return [each for each in self.engines if each.has_common_steps]
