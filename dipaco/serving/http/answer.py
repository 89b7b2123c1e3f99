"""One HTTP request while it is answered: its choices, each a stream of the loop, written as text.

A prompt becomes `n` choices. Each waits separately until its path is in memory (a request of many
prompts may need more paths than fit at once). All streams report to one event bridge, in order.
`close` frees what the choices hold.

If the service re-routes every W tokens, the loop makes W tokens of a choice at a time, and the path
of the next ones is chosen in between. On another path the tokens so far are prefilled again.
`metrics` counts those tokens, and the tokens that the router reads.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from dipaco.serving.decoding.grammar import Grammar
from dipaco.serving.decoding.request_queue import (
    EventBridge,
    Finish,
    GenerationRequest,
    Stream,
    Token,
)
from dipaco.serving.decoding.sampling import SamplingSettings, choice_seed
from dipaco.serving.dispatch import PathChoice
from dipaco.serving.errors import LoopStopping, PathCacheTooSmall, QueueFull
from dipaco.serving.fairness import ClientPlaces
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.metrics import Metrics, RequestTimes
from dipaco.serving.models import ServedRelease
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.prompt_router import PromptRouter
from dipaco.serving.service import Service
from dipaco.serving.text import TextPiece, TextWriter, WrittenToken
from dipaco.store.errors import ObjectDamaged, ObjectMissing, StoreFault


class RequestAdmission:
    """One for all requests of a service. It is used in the event loop only.

    Attributes:
      paths: admits to the service's cache.
    """

    def __init__(self, service: Service):
        self._service = service
        self.paths = PathAdmission(service.cache)
        self._places = ClientPlaces()  # places of choices

    @contextlib.contextmanager
    def admitted(self, num_choices: int, client: str) -> Generator[None]:
        """Gives the choices of a client's request places while the context is open: the loop takes
        each of them then, whatever other clients ask for meanwhile.

        Raises:
          QueueFull: there are too many now, and the client has its share of them.
          ApiError: there are more than fit at any time.
        """
        if num_choices > (capacity := self._service.loop.capacity):
            problem = f"{num_choices} choices are more than the {capacity} that this server takes"
            raise ApiError(
                400, f"{problem} at once. Ask for fewer, or in several requests.", param="n"
            )
        if not self._places.take(client, num_choices, capacity):
            raise QueueFull(waiting=self._places.num_held, retry_after_seconds=1)
        try:
            yield
        finally:
            self._places.give_back(client, num_choices)

    @contextlib.asynccontextmanager
    async def pinned(self, served: ServedRelease, path: int, client: str) -> AsyncGenerator[None]:
        """Keeps a path in memory for a client. Waits until it fits.

        Raises:
          ApiError: it cannot be served, for a reason that is known already.
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: it cannot be read.
        """
        if problem := self._service.problem_of(served, path):
            raise ApiError(503, problem, param="path", code="path_not_whole")
        async with self.paths.pinned(served.modules_of(path), client):
            yield


class Prompt(NamedTuple):
    """A routed prompt."""

    text: str
    ids: tuple[int, ...]
    choice: PathChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """Parameters of generation for every prompt of a request."""

    max_new_tokens: int
    sampling: SamplingSettings
    n: int = 1  # choices of each prompt
    seed: int = 0  # seed of the first choice of the first prompt. The others' follow from it
    stops: tuple[str, ...] = ()  # strings that end a choice
    stop_ids: frozenset[int] = frozenset()  # tokens that end a choice
    min_new_tokens: int = 0  # tokens before a stop id may end it
    grammar: Grammar | None = None  # grammar of the text, kept compiled while it is written
    num_logprobs: int | None = None
    has_echo: bool = False  # the text begins with the prompt
    cache_salt: str = ""  # texts of the same salt may begin its own
    is_path_given: bool = False  # the request gave the path: never routed, never re-routed


class AnswerEvent(NamedTuple):
    """New text of one choice."""

    index: int
    path: int
    text: str
    tokens: list[WrittenToken]
    finish_reason: Literal["stop", "length"] | None


class _Choice:
    """One continuation in progress."""

    def __init__(self, index: int, prompt: Prompt, writer: TextWriter, seed: int):
        self.index, self.prompt, self.writer, self.seed = index, prompt, writer, seed
        self.path = prompt.choice.path
        self.new_ids: list[int] = []
        self.stream: Stream | None = None
        self.left_path: int | None = None  # path that it has just left, and may return to
        self.leaves_path = asyncio.Event()
        self.is_over = False
        self.is_echoed = False
        self.times: RequestTimes | None = None  # None once it is over

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt.ids + tuple(self.new_ids)


_Items = tuple[_Choice, Sequence[Token | Finish]]  # a choice, and what came of it together


class Answer:
    """An answer that starts at once. It must be created in the event loop.

    Args:
      service, admission, router, metrics: shared by all answers.
      model: the name that was asked for.
      served: the release that it begins and ends in.
      admitted: the places of its choices, which it gives back.
      came_seconds: when the request came, by `time.monotonic`.
    """

    def __init__(
        self,
        service: Service,
        admission: RequestAdmission,
        router: PromptRouter,
        metrics: Metrics,
        model: str,
        served: ServedRelease,
        prompts: list[Prompt],
        params: GenerationParams,
        client: str,
        admitted: contextlib.ExitStack,
        came_seconds: float,
    ):
        self._service, self._admission, self._metrics = service, admission, metrics
        self._router = router
        self.served, self._params, self._client = served, params, client
        self.prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        self.completion_tokens = 0
        self._choices = [
            _Choice(
                prompt_index * params.n + nth,
                prompt,
                TextWriter(service.token_bytes, params.stops, prompt.ids, service.text_starts),
                choice_seed(params.seed, prompt_index, nth),
            )
            for prompt_index, prompt in enumerate(prompts)
            for nth in range(params.n)
        ]
        self._echoes_logprobs = params.has_echo and params.num_logprobs is not None
        self._came_seconds = came_seconds
        self._bridge: EventBridge[_Items] = EventBridge()
        self._admitted = admitted
        self._model, self._requests = model, metrics.requests
        for choice in self._choices:
            choice.times = self._requests.begin(model, len(choice.prompt.ids), came_seconds)
        self._tasks = {asyncio.create_task(self._run(choice)) for choice in self._choices}

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def close(self) -> None:
        """Frees rows, paths and admitted choices. It may be called twice."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        self._tasks = set()
        for choice in self._choices:
            self._end_times(choice, "abort")
        self._admitted.close()
        self._metrics.prompt_tokens.inc(self.prompt_tokens)
        self._metrics.completion_tokens.inc(self.completion_tokens)

    async def events(self) -> AsyncIterator[list[AnswerEvent]]:
        """New text, at most one event for each choice at a time.

        Raises:
          ApiError, DipacoError, ...: the error that ended a choice. The answer is over then.
        """
        num_open = len(self._choices)
        while num_open:
            events = []
            ended: dict[_Choice, str] = {}
            num_tokens: collections.Counter[_Choice] = collections.Counter()
            came = await self._bridge.take()
            now_seconds = time.monotonic()
            try:
                for choice, items in came:
                    if choice.is_over:
                        continue  # made before the loop saw that the stream was cancelled
                    event = self._event_of(choice, items, num_tokens)
                    if event.finish_reason:
                        ended[choice] = event.finish_reason
                        choice.is_over = True
                        choice.leaves_path.set()
                        num_open -= 1
                    events.append(event)
            finally:
                self._time(num_tokens, now_seconds)
                for choice, reason in ended.items():
                    self._end_times(choice, reason)
            if events := _joined(events):
                yield events

    def _time(self, num_tokens: collections.Counter[_Choice], now_seconds: float) -> None:
        """Measures when tokens came. Tokens of one choice that came together are one piece."""
        if not self._params.max_new_tokens:
            return
        for choice, number in num_tokens.items():
            if number and choice.times is not None:
                row_seconds = choice.stream.row_seconds if choice.stream else None
                self._requests.add_tokens(
                    self._model, choice.times, number, row_seconds, now_seconds
                )

    def _end_times(self, choice: _Choice, reason: str) -> None:
        if choice.times is not None:
            self._requests.end(self._model, choice.times, reason)
            choice.times = None

    async def _run(self, choice: _Choice) -> None:
        """Holds what a choice needs until it is over, path after path."""
        try:
            while True:
                async with self._pinned_path(choice):
                    stream = choice.stream = self._submit(choice)
                    try:
                        await choice.leaves_path.wait()
                    finally:
                        stream.cancel()
                if choice.is_over:
                    return
                choice.leaves_path.clear()
                await self._reroute(choice)
        except Exception as error:
            self._bridge.put((choice, [Finish("error", error)]))

    @contextlib.asynccontextmanager
    async def _pinned_path(self, choice: _Choice) -> AsyncGenerator[None]:
        """Keeps the path of a choice in memory. If it has moved to a path that cannot be served, it
        moves back.
        """
        async with contextlib.AsyncExitStack() as pinned:
            try:
                await pinned.enter_async_context(self._pinned(choice.path))
            except (ApiError, ObjectMissing, ObjectDamaged, PathCacheTooSmall, StoreFault):
                if choice.left_path is None:
                    raise
                choice.path = choice.left_path
                await pinned.enter_async_context(self._pinned(choice.path))
            choice.left_path = None
            yield

    def _pinned(self, path: int) -> contextlib.AbstractAsyncContextManager[None]:
        return self._admission.pinned(self.served, path, self._client)

    def _submit(self, choice: _Choice) -> Stream:
        params, made = self._params, len(choice.new_ids)
        num_new = max(params.max_new_tokens, 1) - made
        if (every := self._reroute_every) is not None:
            num_new = min(num_new, every - made % every)
        return self._service.loop.submit(
            GenerationRequest(
                prompt_ids=choice.ids,
                num_given=len(choice.prompt.ids),
                path=choice.path,
                release=self.served.digest,
                max_new_tokens=num_new,
                min_new_tokens=max(0, params.min_new_tokens - made),
                sampling=params.sampling,
                client=self._client,
                cache_salt=params.cache_salt,
                seed=choice.seed,
                stop_ids=params.stop_ids,
                schema=None if params.grammar is None else params.grammar.schema,
                num_logprobs=params.num_logprobs,
                prompt_logprobs=self._echoes_logprobs and not choice.is_echoed,
            ),
            # The stream refers to this answer, and so keeps the release while a row needs it.
            functools.partial(self._on_items, choice),
        )

    def _on_items(self, choice: _Choice, items: Sequence[Token | Finish]) -> None:
        """Called in the loop's thread."""
        self._bridge.put((choice, items))

    @property
    def _reroute_every(self) -> int | None:
        """New tokens after which a path is chosen again. None = never."""
        is_fixed = self._params.is_path_given or self.served.num_paths == 1
        return None if is_fixed else self._service.settings.reroute_every

    def _goes_on(self, choice: _Choice, end: Finish) -> bool:
        """True if only the tokens until its path is chosen again have ended."""
        return (
            end.reason == "length"
            and self._reroute_every is not None
            and len(choice.new_ids) < self._params.max_new_tokens
            and len(choice.ids) < self._service.model.max_length
        )

    async def _reroute(self, choice: _Choice) -> None:
        """Moves a choice to the path that should continue it."""
        text = np.array(choice.ids, np.int32)
        rerouted = await self._router.reroute(self.served, text, self._client)
        if rerouted is None:
            return
        self._metrics.reroute_choices.inc()
        self._metrics.reroute_router_tokens.inc(rerouted.tokens_read)
        is_whole = self._service.problem_of(self.served, rerouted.path) is None
        if is_whole and rerouted.path != choice.path:
            choice.left_path, choice.path = choice.path, rerouted.path
            self._metrics.reroutes.inc()
            self._metrics.reroute_tokens.inc(len(choice.ids))

    def _event_of(
        self,
        choice: _Choice,
        items: Sequence[Token | Finish],
        num_tokens: collections.Counter[_Choice],
    ) -> AnswerEvent:
        """The text of what came together, up to the end."""
        (text, tokens), reason = self._echo(choice), None
        for item in items:
            num_tokens[choice] += isinstance(item, Token)
            if isinstance(item, Finish) and self._goes_on(choice, item):
                choice.leaves_path.set()
                break
            piece = self._piece_of(choice, item)
            text += piece.text
            tokens += piece.tokens
            if choice.writer.is_stopped:
                reason = "stop"
            elif isinstance(item, Finish):
                has_ended = item.reason == "stop" and self._params.max_new_tokens
                reason = "stop" if has_ended else "length"
            if reason:
                break
        return AnswerEvent(choice.index, choice.path, text, tokens, reason)

    def _piece_of(self, choice: _Choice, item: Token | Finish) -> TextPiece:
        if isinstance(item, Token):
            if self._params.max_new_tokens and not self.completion_tokens:
                self._metrics.first_token.observe(time.monotonic() - self._came_seconds)
            if self._params.max_new_tokens:
                self.completion_tokens += 1
                choice.new_ids.append(item.id)
            if item.id in self._params.stop_ids or not self._params.max_new_tokens:
                return TextPiece("", [])
            return choice.writer.add(item)
        if item.reason == "error":
            assert item.error is not None
            raise item.error
        if item.reason == "cancelled":  # not by the client: the drain time is over
            raise LoopStopping()
        return choice.writer.end()

    def _echo(self, choice: _Choice) -> TextPiece:
        """The prompt, before the first token."""
        if choice.is_echoed or not self._params.has_echo:
            return TextPiece("", [])
        choice.is_echoed = True
        logprobs = choice.stream.prompt_logprobs if choice.stream else None
        return choice.writer.echo(choice.prompt.text, logprobs or ())


def _joined(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """One event for each choice, without empty ones."""
    by_choice: dict[int, AnswerEvent] = {}
    for event in events:
        if before := by_choice.get(event.index):
            text, tokens = before.text + event.text, before.tokens + event.tokens
            event = event._replace(text=text, tokens=tokens)
        by_choice[event.index] = event
    return [e for e in by_choice.values() if e.text or e.tokens or e.finish_reason]
