"""One prompt on one path, decoded without a server."""

import contextlib
import queue
from collections.abc import Generator, Iterator, Sequence

from dipaco.model.config import ModelConfig
from dipaco.model.inference import prepare
from dipaco.model.spec import Parts
from dipaco.serving.decoding.decode import buckets, smallest_fitting
from dipaco.serving.decoding.grammar import Grammars
from dipaco.serving.decoding.limits import LoopLimits, check_fits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest, Stream
from dipaco.serving.decoding.sampling import SamplingSettings


def generate(
    config: ModelConfig,
    parts: Parts,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: SamplingSettings,
    seed: int,
    stop_ids: frozenset[int] = frozenset(),
    min_new_tokens: int = 0,
    grammars: Grammars | None = None,
) -> Iterator[int]:
    """Yields the tokens that follow a prompt, each block as soon as it is made.

    Ends with one of `stop_ids`, after `max_new_tokens`, or when prompt and continuation fill the
    context.

    Args:
      parts: the parameters of one path, as trained.
      prompt_ids: at least one token.
      stop_ids: tokens that end the text. The one that does is yielded last.
      min_new_tokens: tokens before which none of them is drawn.
      grammars: the vocabulary to draw from. None = each id of the model is a token.

    Raises:
      EmptyPrompt, ContextTooLong: the prompt is empty, or fills the context. Raised by the call
        itself, not by the iterator.
    """
    check_fits(config, prompt_ids)
    if max_new_tokens < 1:
        return iter(())
    needed = len(prompt_ids) + max_new_tokens + LoopLimits.steps_per_block
    # One size of everything: one request needs one program of each kind.
    limits = LoopLimits(
        rows=1,
        rows_per_path=1,
        smallest_slots=smallest_fitting(buckets(32, config.max_length), needed),
        prompt_tokens_per_iteration=config.max_length,
    )
    prepared = prepare(config, parts)
    loop = Loop(
        config, lambda *_: contextlib.nullcontext(prepared), limits=limits, grammars=grammars
    )
    stream = loop.submit(
        GenerationRequest(
            prompt_ids=tuple(prompt_ids),
            path=0,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            seed=seed,
            stop_ids=stop_ids,
            min_new_tokens=min_new_tokens,
        )
    )
    return _tokens(loop, stream)


def _tokens(loop: Loop, stream: Stream) -> Generator[int]:
    while True:
        try:
            item = stream.get(timeout_seconds=0)
        except queue.Empty:
            loop.run_once()
            continue
        if isinstance(item, Finish):
            if item.error is not None:
                raise item.error
            return
        yield item.id
