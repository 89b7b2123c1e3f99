"""One HTTP request while it is answered: its choices, each a stream of the loop, made into text.

A prompt becomes `n` choices. Each waits by itself until its path is in memory (a request of many
prompts may need more paths than fit at once), and all of them tell one feed, in the order in which
things happen. Whoever stops listening calls `close`, which frees what the choices hold.

Where the service routes anew every W tokens, a choice may move to another path on its way: what it
has made so far is then the prompt there, and is read again, which `metrics` counts, as it counts
what the router reads to choose.
"""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, NamedTuple

import numpy as np

from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish, GenerationRequest, Stream, Token
from dipaco.serving.dispatch import PathChoice
from dipaco.serving.errors import LoopStopping, QueueFull
from dipaco.serving.event_bridge import EventBridge
from dipaco.serving.http.admission import RequestAdmission
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.metrics import Metrics
from dipaco.serving.releases import ServedRelease
from dipaco.serving.service import Service
from dipaco.serving.text import TextPiece, TextWriter, WrittenToken
from dipaco.store.errors import ObjectDamaged, ObjectMissing

QUEUE_AGAIN_SECONDS = 0.05  # between tries of a choice that moves while the queue is full


class Prompt(NamedTuple):
    """A prompt that has been routed."""

    text: str
    ids: tuple[int, ...]
    choice: PathChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """What is wanted of every prompt."""

    max_new_tokens: int
    sampling: SamplingSettings
    n: int = 1  # choices of each prompt
    seed: int = 0  # of the first choice; the next takes the next
    stops: tuple[str, ...] = ()  # strings that end a choice
    stop_ids: frozenset[int] = frozenset()  # tokens that do
    num_logprobs: int | None = None
    has_echo: bool = False  # the prompt comes first
    is_path_given: bool = False  # by the request: it is not routed, and never anew


class AnswerEvent(NamedTuple):
    """Something to tell about one choice."""

    index: int
    path: int
    text: str
    tokens: list[WrittenToken]
    finish_reason: Literal["stop", "length"] | None


class _Choice:
    """One continuation in the making."""

    def __init__(self, index: int, prompt: Prompt, writer: TextWriter):
        self.index, self.prompt, self.writer = index, prompt, writer
        self.path = prompt.choice.path
        self.made: list[int] = []  # ids so far
        self.stream: Stream | None = None
        self.left_path: int | None = None  # from which it has just moved, and may go back
        self.path_number = 0  # how often it has moved: what streams of old paths tell is left out
        self.leaves_path = asyncio.Event()
        self.is_over = False
        self.is_echoed = False

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt.ids + tuple(self.made)


class Answer:
    """Begins at once; to be made in the event loop.

    Args:
      service, admission, metrics: shared by all answers.
      served: the release that it begins and ends in.
      prompts: at least one.
      wish: what is wanted of each.

    Raises:
      QueueFull: too many are being answered already.
    """

    def __init__(
        self,
        service: Service,
        admission: RequestAdmission,
        metrics: Metrics,
        served: ServedRelease,
        prompts: list[Prompt],
        params: GenerationParams,
    ):
        self._service, self._admission, self._metrics = service, admission, metrics
        self.served, self._params = served, params
        self.prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        self.completion_tokens = 0
        self._choices = [
            _Choice(index, prompt, TextWriter(service.token_bytes, params.stops))
            for index, prompt in enumerate(prompt for prompt in prompts for _ in range(params.n))
        ]
        self._echoes_logprobs = params.has_echo and params.num_logprobs is not None
        self._started = time.monotonic()
        self._bridge: EventBridge[tuple[_Choice, int, Token | Finish]] = EventBridge()
        self._place = contextlib.ExitStack()
        self._place.enter_context(admission.inside(len(self._choices)))
        self._tasks = [asyncio.create_task(self._make(choice)) for choice in self._choices]

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def is_over(self) -> bool:
        """Whether all has been told."""
        return all(choice.is_over for choice in self._choices)

    def close(self) -> None:
        """Frees rows, paths and the place in the queue; may be called twice."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._place.close()
        self._metrics.prompt_tokens.inc(self.prompt_tokens)
        self._metrics.completion_tokens.inc(self.completion_tokens)

    async def events(self) -> AsyncIterator[list[AnswerEvent]]:
        """What happens, as much at once as has happened since the last time.

        Raises:
          Refusal, DipacoError, ...: what ended a choice; the answer is over then.
        """
        num_open = len(self._choices)
        while num_open:
            told = []
            for choice, path_number, item in await self._bridge.take():
                if choice.is_over or path_number != choice.path_number:
                    continue  # made before the loop heard that nobody wants it
                event = self._hear(choice, item)
                if event.finish_reason:
                    choice.is_over = True
                    choice.leaves_path.set()
                    num_open -= 1
                elif self._is_due(choice):
                    await self._route_anew(choice)
                told.append(event)
            if told := _joined(told):
                yield told

    async def _make(self, choice: _Choice) -> None:
        """Holds what a choice needs until it is over, path after path."""
        try:
            while not choice.is_over:
                async with self._holding(choice):
                    stream = choice.stream = await self._submitted(choice)
                    try:
                        await choice.leaves_path.wait()
                    finally:
                        stream.cancel()
                choice.leaves_path.clear()
        except Exception as error:
            self._bridge.put((choice, choice.path_number, Finish("error", error)))

    @contextlib.asynccontextmanager
    async def _holding(self, choice: _Choice) -> AsyncGenerator[None]:
        """Keeps the path of a choice in memory. Where a path that it has moved to cannot be served,
        the one that it came from goes on.
        """
        async with contextlib.AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._admission.holding(self.served, choice.path))
            except (ApiError, ObjectMissing, ObjectDamaged):
                if choice.left_path is None:
                    raise
                choice.path = choice.left_path
                await held.enter_async_context(self._admission.holding(self.served, choice.path))
            choice.left_path = None
            yield

    async def _submitted(self, choice: _Choice) -> Stream:
        """Raises `QueueFull`, unless the choice has begun: it was let in already."""
        while True:
            try:
                return self._submit(choice)
            except QueueFull:
                if not choice.made:
                    raise
                await asyncio.sleep(QUEUE_AGAIN_SECONDS)

    def _submit(self, choice: _Choice) -> Stream:
        params = self._params
        return self._service.loop.submit(
            GenerationRequest(
                prompt_ids=choice.ids,
                path=choice.path,
                release=self.served.digest,
                max_new_tokens=max(params.max_new_tokens, 1) - len(choice.made),
                sampling=params.sampling,
                seed=(params.seed + choice.index % params.n) % 2**63,
                stop_ids=params.stop_ids,
                num_logprobs=params.num_logprobs,
                prompt_logprobs=self._echoes_logprobs and not choice.is_echoed,
            ),
            # The stream holds this, and with it the release: it is there while a row needs it.
            functools.partial(self._tell, choice, choice.path_number),
        )

    def _tell(self, choice: _Choice, path_number: int, item: Token | Finish) -> None:
        """Called in the loop's thread."""
        self._bridge.put((choice, path_number, item))

    def _is_due(self, choice: _Choice) -> bool:
        """Whether the path is to be chosen anew: after W tokens, if there is more to come."""
        every = self._service.settings.reroute_every
        if every is None or self._params.is_path_given or not choice.made:
            return False
        is_last = (
            len(choice.made) >= self._params.max_new_tokens
            or len(choice.ids) >= self._service.model.max_length
            or choice.made[-1] in self._params.stop_ids
        )
        return len(choice.made) % every == 0 and not is_last

    async def _route_anew(self, choice: _Choice) -> None:
        """Moves a choice to the path that should go on with it."""
        text = np.array(choice.ids, np.int32)
        chosen = await asyncio.to_thread(self._service.reroute, self.served, text)
        self._metrics.reroute_choices.inc()
        self._metrics.reroute_router_tokens.inc(chosen.tokens_read)
        is_whole = self._service.problem_of(self.served, chosen.path) is None
        if is_whole and chosen.path != choice.path:
            choice.left_path, choice.path = choice.path, chosen.path
            choice.path_number += 1
            choice.leaves_path.set()
            self._metrics.reroutes.inc()
            self._metrics.reroute_tokens.inc(len(choice.ids))

    def _hear(self, choice: _Choice, item: Token | Finish) -> AnswerEvent:
        echo = self._echo(choice)
        piece, reason = self._hear_end(choice, item), None
        if choice.writer.is_stopped:
            reason = "stop"
        elif isinstance(item, Finish):
            reason = "stop" if item.reason == "stop" else "length"
        text, tokens = echo.text + piece.text, echo.tokens + piece.tokens
        return AnswerEvent(choice.index, choice.path, text, tokens, reason)

    def _hear_end(self, choice: _Choice, item: Token | Finish) -> TextPiece:
        if isinstance(item, Token):
            if not self.completion_tokens:
                self._metrics.first_token.observe(time.monotonic() - self._started)
            if self._params.max_new_tokens:
                self.completion_tokens += 1
                choice.made.append(item.id)
            if item.id in self._params.stop_ids or not self._params.max_new_tokens:
                return TextPiece("", [])
            return choice.writer.add(item)
        if item.reason == "error":
            assert item.error is not None
            raise item.error
        if item.reason == "cancelled":  # by nobody who listens: the time to drain was over
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
    """One event for each choice, without those that say nothing."""
    by_choice: dict[int, AnswerEvent] = {}
    for event in events:
        if before := by_choice.get(event.index):
            text, tokens = before.text + event.text, before.tokens + event.tokens
            event = event._replace(text=text, tokens=tokens)
        by_choice[event.index] = event
    return [e for e in by_choice.values() if e.text or e.tokens or e.finish_reason]
