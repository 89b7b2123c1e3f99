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
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from dipaco.serving.decoding.request_queue import (
    EventBridge,
    Finish,
    GenerationRequest,
    Stream,
    Token,
)
from dipaco.serving.decoding.sampling import choice_seed
from dipaco.serving.dispatch import PromptRouter
from dipaco.serving.errors import LoopStopping, PathCacheTooSmall
from dipaco.serving.fairness import ClientPlaces
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.metrics import Metrics, RequestTimes
from dipaco.serving.http.requests import GenerationParams, ParsedRequest, Prompt
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.service import Service
from dipaco.serving.text import TextPiece, TextWriter, WrittenToken
from dipaco.store.errors import ObjectDamaged, ObjectMissing, StoreFault


class AnswerEvent(NamedTuple):
    """New text of one choice."""

    index: int
    path: int
    text: str
    tokens: list[WrittenToken]
    finish_reason: Literal["stop", "length"] | None


class _Choice:
    """One continuation in progress."""

    def __init__(
        self, service: Service, params: GenerationParams, prompt: Prompt, path: int, index: int
    ):
        self.index, self.text, self.path = index, prompt.text, path
        self.prompt_ids = tuple(prompt.ids.tolist())
        self.seed = choice_seed(params.seed, *divmod(index, params.n))
        self.writer = TextWriter(
            service.token_bytes, params.stops, self.prompt_ids, service.text_starts
        )
        self.new_ids: list[int] = []
        self.stream: Stream | None = None
        self.left_path: int | None = None  # path that it has just left, and may return to
        self.leaves_path = asyncio.Event()
        self.is_over = False
        self.is_echoed = False
        self.times: RequestTimes

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + tuple(self.new_ids)


_Items = tuple[_Choice, Sequence[Token | Finish]]  # a choice, and what came of it together


class Answers:
    """Begins the answers of a service. It is used in one event loop only."""

    def __init__(
        self, service: Service, paths: PathAdmission, router: PromptRouter, metrics: Metrics
    ):
        self.service, self.paths, self.router, self.metrics = service, paths, router, metrics
        self.places = ClientPlaces()  # places of choices

    async def begin(self, parsed: ParsedRequest, client: str, came_seconds: float) -> "Answer":
        """The answer to a request that came at this time (`time.monotonic`), once its prompts are
        routed. Raises `QueueFull`, `ApiError` for more choices than fit at any time, and the errors
        of `PromptRouter.route`.
        """
        number, capacity = len(parsed.prompts) * parsed.params.n, self.service.loop.capacity
        if number > capacity:
            problem = f"{number} choices are more than the {capacity} that this server takes"
            problem += " at once. Ask for fewer, or in several requests."
            raise ApiError(400, problem, param="n")

        with contextlib.ExitStack() as places:
            places.enter_context(self.places.taken(client, number, capacity))
            asked = [(prompt.routed_by, prompt.path) for prompt in parsed.prompts]
            waiting = self.metrics.requests.routing(parsed.model, number)
            with waiting, self.metrics.routing.time():
                paths = await self.router.route_all(parsed.served, asked, client)
            for path in paths:
                self.metrics.prompts.labels(parsed.model, path).inc()
            return Answer(self, parsed, paths, client, places.pop_all(), came_seconds)


class Answer:
    """An answer that starts at once, on these paths, and gives its places back."""

    def __init__(
        self,
        shared: Answers,
        parsed: ParsedRequest,
        paths: Sequence[int],
        client: str,
        places: contextlib.ExitStack,
        came_seconds: float,
    ):
        self._service, self._paths, self._metrics = shared.service, shared.paths, shared.metrics
        self._router = shared.router
        self.served, self._params, self._client = parsed.served, parsed.params, client
        self.prompt_tokens = sum(len(prompt.ids) for prompt in parsed.prompts)
        self.completion_tokens = 0
        params = parsed.params
        self._choices = [
            _Choice(shared.service, params, prompt, path, number * params.n + nth)
            for number, (prompt, path) in enumerate(zip(parsed.prompts, paths, strict=True))
            for nth in range(params.n)
        ]
        self._echoes_logprobs = params.has_echo and params.num_logprobs is not None
        self._bridge: EventBridge[_Items] = EventBridge()
        self._places, begin = places, self._metrics.requests.begin
        for choice in self._choices:
            choice.times = begin(parsed.model, len(choice.prompt_ids), came_seconds)
        self._tasks = {asyncio.create_task(self._run(choice)) for choice in self._choices}

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def close(self) -> None:
        """Frees rows, paths and places. It may be called twice."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        self._tasks = set()
        for choice in self._choices:
            choice.times.end("abort")
        self._places.close()

    async def events(self) -> AsyncIterator[list[AnswerEvent]]:
        """New text, at most one event for each choice at a time. Raises what ended a choice."""
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
                    choice.times.end(reason)
            if events := joined(events):
                yield events

    def _time(self, num_tokens: collections.Counter[_Choice], now_seconds: float) -> None:
        """Measures when tokens came. Tokens of one choice that came together are one piece."""
        if not self._params.max_new_tokens:
            return
        for choice, number in num_tokens.items():
            if number:
                row_seconds = choice.stream.row_seconds if choice.stream else None
                choice.times.add_tokens(number, row_seconds, now_seconds)

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
        """Keeps the path of a choice in memory, else the one that it came from."""
        async with contextlib.AsyncExitStack() as pinned:
            try:
                await pinned.enter_async_context(self._pinned(choice.path))
            except (ObjectMissing, ObjectDamaged, PathCacheTooSmall, StoreFault):
                if choice.left_path is None:
                    raise
                choice.path = choice.left_path
                await pinned.enter_async_context(self._pinned(choice.path))
            choice.left_path = None
            yield

    def _pinned(self, path: int) -> contextlib.AbstractAsyncContextManager[None]:
        return self._paths.pinned(self.served.modules_of(path), self._client)

    def _submit(self, choice: _Choice) -> Stream:
        params, made = self._params, len(choice.new_ids)
        num_new = max(params.max_new_tokens, 1) - made
        if (every := self._reroute_every) is not None:
            num_new = min(num_new, every - made % every)
        return self._service.loop.submit(
            GenerationRequest(
                prompt_ids=choice.ids,
                num_given=len(choice.prompt_ids),
                path=choice.path,
                modules=self.served.modules_of(choice.path),
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
        is_whole = self._paths.problem_of(self.served.modules_of(rerouted.path)) is None
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
        return choice.writer.echo(choice.text, logprobs or ())


def joined(events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
    """One event for each choice, by the first to come, without empty ones."""
    by_choice: dict[int, list[AnswerEvent]] = {}
    for event in events:
        by_choice.setdefault(event.index, []).append(event)
    whole = [
        of_choice[-1]._replace(
            text="".join(event.text for event in of_choice),
            tokens=[token for event in of_choice for token in event.tokens],
        )
        for of_choice in by_choice.values()
    ]
    return [each for each in whole if each.text or each.tokens or each.finish_reason]
