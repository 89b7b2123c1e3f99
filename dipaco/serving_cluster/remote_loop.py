"""The loop of a front end: each request goes to a replica, and to another one if that is lost.

Replicas hold more requests than rows, since some wait for their paths to be read, and their loops
are fair between clients. The others wait here, and go to whichever replica there is then.

A request that was partly answered continues where it stopped: its tokens become part of the prompt,
and since a row draws by its seed and the position of a token, the text is the same as without the
loss. So losing a replica costs time and nothing else.
"""

import asyncio
import contextlib
import dataclasses
import functools
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Set

from dipaco.serving.decoding.limits import check_fits
from dipaco.serving.decoding.meter import RATE_SECONDS, LoopMeter, LoopStats
from dipaco.serving.decoding.request_queue import LineKey, line_of, rows_held
from dipaco.serving.decoding.stream import (
    Finish,
    GenerationRequest,
    OnItems,
    PathKey,
    Stream,
    Token,
    key_of,
)
from dipaco.serving.engine import EngineSpec
from dipaco.serving.errors import LoopStopping, NoReplica, ReplicaLost
from dipaco.serving.fairness import FairQueue, has_room
from dipaco.serving.path_cache import Modules
from dipaco.serving_cluster.errors import ReplicaError
from dipaco.serving_cluster.replica import ReplicaStats, ReplicaUpdate
from dipaco.store.errors import ObjectDamaged, ObjectMissing

PER_ROW = 2  # requests that are sent to replicas at once, for each of their rows
RETRY_SECONDS = (0.2, 1.0, 3.0)  # before the next replica is asked, after losses in a row
NO_REPLICA_SECONDS = 60.0  # without a replica, after which waiting requests fail
CHECK_SECONDS = 1.0  # between checks for that

# Answers a request, by a replica that is not one of these names if there is another; closing it
# frees what the request holds. Raises `ReplicaUnavailable`.
Generate = Callable[[GenerationRequest, Modules, Set[str]], AsyncGenerator[ReplicaUpdate]]


class ReplicaUnavailable(Exception):
    """The replica of a request is gone, has stopped answering, or failed with `error`."""

    def __init__(self, error: Exception | None = None):
        super().__init__(error)
        self.error = error


class RemoteStream(Stream):
    """A stream that reports its cancellation at once."""

    def __init__(
        self,
        request: GenerationRequest,
        on_items: OnItems | None,
        on_cancel: Callable[[Stream], None],
    ):
        super().__init__(request, on_items)
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        super().cancel()
        self._on_cancel(self)


class _RemoteRequest:
    """A request that a replica answers."""

    def __init__(self, stream: RemoteStream, modules: Modules):
        self.stream, self.modules = stream, modules
        self.new_ids: list[int] = []
        self.tried: set[str] = set()  # names of replicas that have reported its end
        self.task: asyncio.Task[Finish] | None = None
        self.ended_with: Finish | None = None  # set when this process ends it

    @property
    def has_begun(self) -> bool:
        return bool(self.new_ids)


class _Sent:
    """The requests that replicas have: `PER_ROW` for each of their rows, and up to its share of
    them for a client that comes when others have all.
    """

    def __init__(self, rows: int):
        self._rows = rows  # of a replica
        self.num_replicas = 0
        self.by_client: Counter[str] = Counter()
        self.by_path: Counter[PathKey] = Counter()

    def may_begin(self, client: str, key: PathKey) -> bool:
        places = PER_ROW * self._rows * max(1, self.num_replicas)
        return has_room(self.by_client, client, 1, places)

    def count(self, stream: Stream, more: int) -> None:
        self.by_client[stream.request.client] += more
        self.by_path[key_of(stream)] += more
        self.by_client += Counter()  # drops zeros
        self.by_path += Counter()


class RemoteLoop:
    """The loop of a service whose tokens are made by replicas.

    Args:
      spec: the run.
      generate: sends a request to the replica of its path.
    """

    def __init__(self, spec: EngineSpec, generate: Generate):
        self._spec, self._generate = spec, generate
        # By replica name, those that are gone included; who reported last comes last.
        self.replica_stats: dict[str, ReplicaStats] = {}
        self._reported_seconds: dict[str, float] = {}  # when, by replica name
        self.num_replicas = 0
        self.num_lost = 0  # times that a request moved to another replica
        self._replica_seconds = time.monotonic()  # when one was last heard of
        self._meter = LoopMeter()
        self._requests: dict[Stream, _RemoteRequest] = {}  # changed by the thread only
        self._waiting: FairQueue[LineKey, Stream] = FairQueue()  # the thread's own
        self._sent = _Sent(spec.limits.rows)  # the thread's own
        self._lock = threading.Lock()
        self._is_stopping = False
        self._events = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    # --- any thread ---------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Rows of all replicas, and the requests that may wait."""
        limits = self._spec.limits
        return limits.rows * max(1, self.num_replicas) + limits.waiting

    @property
    def is_alive(self) -> bool:
        """Whether there is a replica, or was one recently."""
        return self._thread is not None and self._thread.is_alive() and not self._has_no_replica

    @property
    def problem(self) -> str | None:
        """Why it makes no tokens, in words; None = it can."""
        return None if self.is_alive else "no replica of the serving loop answers"

    def set_num_replicas(self, number: int) -> None:
        """Sets how many replicas answer now."""
        if number or self.num_replicas:
            self._replica_seconds = time.monotonic()
        self.num_replicas = self._sent.num_replicas = number
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self._events.call_soon_threadsafe(self._send)

    def submit(self, request: GenerationRequest, on_items: OnItems | None = None) -> Stream:
        """As `Loop.submit`.

        Raises:
          ContextTooLong, LoopStopping: as there.
          NoReplica: there has been none for `NO_REPLICA_SECONDS`.
        """
        check_fits(self._spec.model, request.prompt_ids)
        modules = self._spec.modules_of(request.release, request.path)
        if self._has_no_replica:
            raise NoReplica(seconds=NO_REPLICA_SECONDS)
        with self._lock:
            if self._is_stopping:
                raise LoopStopping()
        stream = RemoteStream(request, on_items, self._on_cancel)
        self._events.call_soon_threadsafe(self._start, _RemoteRequest(stream, modules))
        return stream

    def stats(self) -> LoopStats:
        """Counts of this process; the seconds are the replicas' own, as of their last updates."""
        requests = list(self._requests.values())
        rows_per_path: dict[PathKey, int] = {}
        for request in requests:
            if request.has_begun:
                key = key_of(request.stream)
                rows_per_path[key] = rows_per_path.get(key, 0) + 1
        loops = [stats.loop for stats in list(self.replica_stats.values())]
        oldest, when = time.monotonic() - RATE_SECONDS, self._reported_seconds
        recent = [stats.loop for stats in self.present() if when[stats.replica] > oldest]
        own = self._meter.stats(sum(not one.has_begun for one in requests), rows_per_path)
        return own._replace(
            num_prompt_tokens=sum(loop.num_prompt_tokens for loop in loops),
            num_prompts_reused=sum(loop.num_prompts_reused for loop in loops),
            num_paused=sum(loop.num_paused for loop in loops),
            tokens_per_second=sum(loop.tokens_per_second for loop in recent),
            prefill_seconds=sum(loop.prefill_seconds for loop in loops),
            decode_seconds=sum(loop.decode_seconds for loop in loops),
            num_replicas=self.num_replicas,
        )

    def present(self) -> list[ReplicaStats]:
        """The latest of the replicas that answer now: as many as there are, those that reported
        last. A replica that is gone keeps its totals and nothing else.
        """
        number = self.num_replicas
        return list(self.replica_stats.values())[-number:] if number else []

    def run(self) -> None:
        """Starts the thread that listens to replicas."""
        self._thread = threading.Thread(target=self._run, name="remote-loop", daemon=True)
        self._thread.start()

    def stop(self, drain_seconds: float) -> None:
        """Takes no more requests, waits at most so long for the running ones, and ends the rest as
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
        silent_seconds = time.monotonic() - self._replica_seconds
        return not self.num_replicas and silent_seconds > NO_REPLICA_SECONDS

    def _on_cancel(self, stream: Stream) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended, and every stream with it
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

    def _start(self, remote: _RemoteRequest) -> None:
        self._requests[remote.stream] = remote
        self._waiting.put(line_of(remote.stream), remote.stream)
        self._send()

    def _send(self) -> None:
        """Sends those that wait, in turn by client, as far as replicas may have more."""
        while (stream := self._waiting.next(rows_held(self._sent))) is not None:
            self._sent.count(stream, 1)
            remote = self._requests[stream]
            remote.task = self._events.create_task(self._answer(remote))
            remote.task.add_done_callback(functools.partial(self._on_done, remote))

    def _end(self, stream: Stream, finish: Finish) -> None:
        if (remote := self._requests.get(stream)) is None:
            return
        remote.ended_with = remote.ended_with or finish
        if remote.task is not None:
            remote.task.cancel()
        elif self._waiting.remove(line_of(stream), stream):
            self._finish(remote, finish)

    def _on_done(self, remote: _RemoteRequest, task: asyncio.Task[Finish]) -> None:
        self._sent.count(remote.stream, -1)
        finish = remote.ended_with
        if not task.cancelled():
            error = task.exception()
            # An unexpected error still ends the stream.
            failed = Finish("error", error if isinstance(error, Exception) else None)
            finish = failed if error else task.result()
        self._finish(remote, finish or Finish("cancelled"))
        self._send()

    def _finish(self, remote: _RemoteRequest, finish: Finish) -> None:
        del self._requests[remote.stream]
        self._meter.record_finish(finish.reason)
        remote.stream.put([finish])

    async def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._requests and time.monotonic() < deadline:
            tasks = [one.task for one in self._requests.values() if one.task]
            await asyncio.wait(tasks, timeout=max(0.0, deadline - time.monotonic()))
            await asyncio.sleep(0)  # lets their streams end
        for stream in list(self._requests):
            self._end(stream, Finish("cancelled"))
        while self._requests:
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            oldest = time.monotonic() - NO_REPLICA_SECONDS
            for stream in list(self._requests):
                # Where there are replicas, as far as known, it waits for a sign of one this long.
                began = stream.submitted_seconds if self.num_replicas else 0.0
                if max(self._replica_seconds, began) < oldest:
                    self._end(stream, Finish("error", NoReplica(seconds=NO_REPLICA_SECONDS)))

    async def _answer(self, remote: _RemoteRequest) -> Finish:
        """Sends the request to one replica after another until one has finished it."""
        lost_in_a_row = num_made = 0
        while not (end := self._end_of(remote)):  # a lost replica may have made the last token
            try:
                return await self._follow(remote)
            except ReplicaUnavailable as unavailable:
                self.num_lost += 1
                error = unavailable.error
            if len(remote.new_ids) > num_made:
                lost_in_a_row, num_made = 0, len(remote.new_ids)
            if lost_in_a_row == len(RETRY_SECONDS):
                return Finish("error", error or ReplicaLost(tries=lost_in_a_row + 1))
            await asyncio.sleep(RETRY_SECONDS[lost_in_a_row])
            lost_in_a_row += 1
        return end

    async def _follow(self, remote: _RemoteRequest) -> Finish:
        updates = self._generate(_remaining(remote), remote.modules, remote.tried)
        async with contextlib.aclosing(updates):
            async for update in updates:
                if finish := self._apply(remote, update):
                    return finish
        raise ReplicaUnavailable

    def _apply(self, remote: _RemoteRequest, update: ReplicaUpdate) -> Finish | None:
        self._replica_seconds = time.monotonic()
        if update.stats is not None:
            name = update.stats.replica
            remote.tried.add(name)
            self._reported_seconds[name] = time.monotonic()
            others = {one: stats for one, stats in self.replica_stats.items() if one != name}
            self.replica_stats = others | {name: update.stats}  # at once, for other threads
            for seconds in update.stats.cold_seconds:
                self._spec.on_cold(seconds)
        stream = remote.stream
        if stream.prompt_logprobs is None:
            stream.prompt_logprobs = update.prompt_logprobs
        tokens = [item for item in update.items if isinstance(item, Token)]
        if tokens:
            if not remote.new_ids:
                self._meter.record_first_token(stream.submitted_seconds)
            remote.new_ids += [token.id for token in tokens]
            self._meter.num_tokens += len(tokens)
            stream.put(tokens)
        end = update.items[-1] if update.items else None
        return self._checked(remote, end) if isinstance(end, Finish) else None

    def _checked(self, remote: _RemoteRequest, finish: Finish) -> Finish:
        """The end of the request. Raises `ReplicaUnavailable` where another replica may go on."""
        match finish.error:
            case LoopStopping():
                raise ReplicaUnavailable
            case ReplicaError() as error:  # its device may be broken
                raise ReplicaUnavailable(error)
            case ObjectMissing() | ObjectDamaged() as error:
                name = error.values.get("name")
                for receipt in remote.modules.values():
                    if receipt.name == name:
                        self._spec.health.mark_broken(receipt.digest, str(error))
        if finish.reason == "cancelled":
            raise ReplicaUnavailable
        return finish

    def _end_of(self, remote: _RemoteRequest) -> Finish | None:
        request, new_ids = remote.stream.request, remote.new_ids
        if new_ids and new_ids[-1] in request.stop_ids:
            return Finish("stop")
        is_full = len(request.prompt_ids) + len(new_ids) >= self._spec.model.max_length
        return Finish("length") if len(new_ids) >= request.max_new_tokens or is_full else None


def _remaining(remote: _RemoteRequest) -> GenerationRequest:
    """The request for the tokens that are still missing."""
    request, new_ids = remote.stream.request, remote.new_ids
    if not new_ids:
        return request
    return dataclasses.replace(
        request,
        prompt_ids=(*request.prompt_ids, *new_ids),
        num_given=request.num_given or len(request.prompt_ids),
        max_new_tokens=request.max_new_tokens - len(new_ids),
        min_new_tokens=max(0, request.min_new_tokens - len(new_ids)),
        prompt_logprobs=request.prompt_logprobs and remote.stream.prompt_logprobs is None,
    )
