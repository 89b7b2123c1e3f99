"""Asking loops of other processes: each request goes to one of them, and on to another if it dies.

A request that was half answered goes on where it stopped: what was made is then part of the prompt,
and since a row draws by its seed and the position of a token, the text is the one that it would
have been. So a replica that is lost costs time and nothing else.
"""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from dipaco.serving.decoding.loop import check_fits
from dipaco.serving.decoding.meter import LoopMeter, LoopStats
from dipaco.serving.decoding.stream import Finish, GenerationRequest, OnToken, Stream
from dipaco.serving.decoding.waiting_requests import PathKey, key_of
from dipaco.serving.engine import EngineSpec
from dipaco.serving.errors import LoopStopping, NoReplica, QueueFull, ReplicaLost
from dipaco.serving.path_cache import CacheStats, Modules
from dipaco.serving_cluster.replica import ReplicaStats, ReplicaUpdate
from dipaco.store.errors import ObjectDamaged, ObjectMissing

TRIES = 4  # replicas that one request may lose
RETRY_SECONDS = 0.2  # before the next of them is asked
NO_REPLICA_SECONDS = 60.0  # without a replica, before those who wait are told so
LOOK_SECONDS = 1.0  # between looks at that

# Answers a request; closing it frees what the request holds. Raises `ReplicaUnavailable`.
Ask = Callable[[GenerationRequest, Modules], AsyncGenerator[ReplicaUpdate]]


class ReplicaUnavailable(Exception):
    """Whoever answered is gone, or stops answering."""


class RemoteStream(Stream):
    """A stream whose listener's leaving is heard at once."""

    def __init__(
        self,
        request: GenerationRequest,
        on_token: OnToken | None,
        on_cancel: Callable[[Stream], None],
    ):
        super().__init__(request, on_token)
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        super().cancel()
        self._on_cancel(self)


class _RemoteRequest:
    """A request that is being answered elsewhere."""

    def __init__(self, stream: RemoteStream, modules: Modules):
        self.stream, self.modules = stream, modules
        self.made: list[int] = []  # ids so far
        self.task: asyncio.Task[Finish] | None = None
        self.last: Finish | None = None  # why it is ended from here

    @property
    def has_begun(self) -> bool:
        return bool(self.made)


class RemoteLoop:
    """What a service has for a loop when replicas make the tokens.

    Args:
      brief: the run.
      ask: asks a replica that is chosen for the request's path.
    """

    def __init__(self, spec: EngineSpec, ask: Ask):
        self._spec, self._ask = spec, ask
        self.replica_stats: dict[
            str, ReplicaStats
        ] = {}  # the latest of each replica that was heard of
        self.num_replicas = 0
        self.num_lost = 0  # times that a request had to go on elsewhere
        self._heard_seconds = time.monotonic()  # when there was a replica
        self._meter = LoopMeter()
        self._followed: dict[Stream, _RemoteRequest] = {}  # of the thread below, but for its length
        self._lock = threading.Lock()
        self._num_admitted = 0
        self._is_stopping = False
        self._events = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    # --- any thread ---------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Requests that all take at once, and as many more as may wait."""
        limits = self._spec.limits
        return limits.rows * max(1, self.num_replicas) + limits.waiting

    @property
    def is_alive(self) -> bool:
        """Whether there is somebody to ask, or will be soon."""
        return self._thread is not None and self._thread.is_alive() and not self._has_no_replica

    def set_num_replicas(self, number: int) -> None:
        """So many answer now."""
        self.num_replicas = number
        if number:
            self._heard_seconds = time.monotonic()

    def submit(self, request: GenerationRequest, on_token: OnToken | None = None) -> Stream:
        """As `Loop.submit`.

        Raises:
          ContextTooLong, QueueFull, LoopStopping: as there.
          NoReplica: there has been none for a while.
        """
        check_fits(self._spec.model, request.prompt_ids)
        modules = self._spec.modules_of(request.release, request.path)
        if self._has_no_replica:
            raise NoReplica(seconds=NO_REPLICA_SECONDS)
        with self._lock:
            if self._is_stopping:
                raise LoopStopping()
            if (inside := self._num_admitted) >= self.capacity:
                seconds = self._meter.seconds_until_served(inside)
                raise QueueFull(waiting=inside, retry_after_seconds=seconds)
            self._num_admitted += 1
        stream = RemoteStream(request, on_token, self._has_left)
        self._events.call_soon_threadsafe(self._begin, _RemoteRequest(stream, modules))
        return stream

    def stats(self) -> LoopStats:
        """What is seen from here; the seconds are the replicas' own, as of their last answers."""
        followed = list(self._followed.values())
        rows_per_path: dict[PathKey, int] = {}
        for one in followed:
            if one.has_begun:
                key = key_of(one.stream)
                rows_per_path[key] = rows_per_path.get(key, 0) + 1
        loops = [picture.loop for picture in list(self.replica_stats.values())]
        seen = self._meter.stats(sum(not one.has_begun for one in followed), rows_per_path)
        return seen._replace(
            num_prompt_tokens=sum(loop.num_prompt_tokens for loop in loops),
            num_prompts_reused=sum(loop.num_prompts_reused for loop in loops),
            tokens_per_second=sum(loop.tokens_per_second for loop in loops),
            prefill_seconds=sum(loop.prefill_seconds for loop in loops),
            decode_seconds=sum(loop.decode_seconds for loop in loops),
            num_replicas=self.num_replicas,
        )

    def run(self) -> None:
        """Starts the thread that listens to replicas."""
        self._thread = threading.Thread(target=self._run, name="remote-loop", daemon=True)
        self._thread.start()

    def stop(self, drain_seconds: float) -> None:
        """Takes no more requests, waits for those that run, at most so long, and ends the rest as
        `cancelled`.
        """
        with self._lock:
            self._is_stopping = True
        if self._thread is None or not self._thread.is_alive():
            return
        stopping = asyncio.run_coroutine_threadsafe(self._drain(drain_seconds), self._events)
        stopping.result()
        self._events.call_soon_threadsafe(self._events.stop)
        self._thread.join()

    @property
    def _has_no_replica(self) -> bool:
        return time.monotonic() - self._heard_seconds > NO_REPLICA_SECONDS

    def _has_left(self, stream: Stream) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended, and all streams with it
            self._events.call_soon_threadsafe(self._end, stream, Finish("cancelled"))

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._events)
        watching = self._events.create_task(self._watch())
        self._events.run_forever()
        watching.cancel()
        self._events.run_until_complete(asyncio.gather(watching, return_exceptions=True))
        self._events.run_until_complete(self._events.shutdown_asyncgens())
        self._events.close()

    def _begin(self, followed: _RemoteRequest) -> None:
        self._followed[followed.stream] = followed
        followed.task = self._events.create_task(self._follow(followed))
        followed.task.add_done_callback(lambda task: self._is_over(followed, task))

    def _end(self, stream: Stream, finish: Finish) -> None:
        if (followed := self._followed.get(stream)) and followed.task is not None:
            followed.last = followed.last or finish
            followed.task.cancel()

    def _is_over(self, followed: _RemoteRequest, task: asyncio.Task[Finish]) -> None:
        finish = followed.last
        if not task.cancelled():
            error = task.exception()
            # Nothing but a fault of ours; whoever waits is told all the same.
            broken = Finish("error", error if isinstance(error, Exception) else None)
            finish = broken if error else task.result()
        del self._followed[followed.stream]
        with self._lock:
            self._num_admitted -= 1
        finish = finish or Finish("cancelled")
        self._meter.record_finish(finish.reason)
        followed.stream.put(finish)

    async def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._followed and time.monotonic() < deadline:
            tasks = [one.task for one in self._followed.values() if one.task]
            await asyncio.wait(tasks, timeout=max(0.0, deadline - time.monotonic()))
            await asyncio.sleep(0)  # their ends are told
        for stream in list(self._followed):
            self._end(stream, Finish("cancelled"))
        while self._followed:
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._has_no_replica:
                for stream in list(self._followed):
                    self._end(stream, Finish("error", NoReplica(seconds=NO_REPLICA_SECONDS)))

    async def _follow(self, followed: _RemoteRequest) -> Finish:
        """Asks replica after replica until one has told the end."""
        for _ in range(TRIES):
            if end := self._end_of(followed):  # the one that was lost had made the last token
                return end
            try:
                return await self._asked(followed)
            except ReplicaUnavailable:
                self.num_lost += 1
                await asyncio.sleep(RETRY_SECONDS)
        return Finish("error", ReplicaLost(tries=TRIES))

    async def _asked(self, followed: _RemoteRequest) -> Finish:
        pieces = self._ask(_rest(followed), followed.modules)
        async with contextlib.aclosing(pieces):
            async for told in pieces:
                if finish := self._hear(followed, told):
                    return finish
        raise ReplicaUnavailable

    def _hear(self, followed: _RemoteRequest, told: ReplicaUpdate) -> Finish | None:
        if told.picture is not None:
            self.replica_stats[told.picture.replica] = told.picture
            for seconds in told.picture.cold_seconds:
                self._spec.on_cold(seconds)
        stream = followed.stream
        if stream.prompt_logprobs is None:
            stream.prompt_logprobs = told.prompt_logprobs
        for item in told.items:
            if isinstance(item, Finish):
                return self._understood(followed, item)
            if not followed.made:
                self._meter.record_first_token(stream.submitted_seconds)
            followed.made.append(item.id)
            self._meter.num_tokens += 1
            stream.put(item)
        return None

    def _understood(self, followed: _RemoteRequest, finish: Finish) -> Finish:
        """The end, unless it is the replica's own. Raises `ReplicaUnavailable`."""
        match finish.error:
            case LoopStopping() | QueueFull():
                raise ReplicaUnavailable
            case ObjectMissing() | ObjectDamaged() as error:
                name = error.values.get("name")
                for receipt in followed.modules.values():
                    if receipt.name == name:
                        self._spec.health.mark_broken(receipt.digest, str(error))
        if finish.reason == "cancelled":
            raise ReplicaUnavailable
        return finish

    def _end_of(self, followed: _RemoteRequest) -> Finish | None:
        request, made = followed.stream.request, followed.made
        if made and made[-1] in request.stop_ids:
            return Finish("stop")
        is_full = len(request.prompt_ids) + len(made) >= self._spec.model.max_length
        return Finish("length") if len(made) >= request.max_new_tokens or is_full else None


class RemoteCache(NamedTuple):
    """Where each replica holds its own paths: nothing is held here."""

    loop: RemoteLoop

    @property
    def max_bytes(self) -> int:
        """Of all replicas that were heard of."""
        return sum(picture.max_bytes for picture in list(self.loop.replica_stats.values()))

    def pin(self, modules: Modules) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def contains(self, modules: Modules) -> bool:
        return True

    def stats(self) -> CacheStats:
        """All replicas together, as of their last answers."""
        stats = [picture.cache for picture in list(self.loop.replica_stats.values())]
        return CacheStats(*map(sum, zip(*stats, strict=True))) if stats else CacheStats(*[0] * 7)


def _rest(followed: _RemoteRequest) -> GenerationRequest:
    """What is still wanted."""
    request, made = followed.stream.request, followed.made
    if not made:
        return request
    return dataclasses.replace(
        request,
        prompt_ids=(*request.prompt_ids, *made),
        max_new_tokens=request.max_new_tokens - len(made),
        prompt_logprobs=request.prompt_logprobs and followed.stream.prompt_logprobs is None,
    )
