"""A text, routed and continued by one path of a release: for a notebook and for the command line.

The text may be empty, where the run's texts begin with a start token. Then that token is all that
is read.
"""

import contextlib
import queue
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dipaco.control.planning.release import Release
from dipaco.model.config import ModelConfig
from dipaco.model.inference import prepare
from dipaco.model.spec import Parts
from dipaco.runs.routing import paths_of_prefixes, prefixes_of, routing_by
from dipaco.runs.run import Run
from dipaco.serving.decoding.decode import LoopLimits, buckets, check_fits, smallest_fitting
from dipaco.serving.decoding.grammar import Grammars, GrammarVocabulary
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest, Stream
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.dispatch import PathChoice, dispatch, without_start
from dipaco.serving.models import is_routed


class Continuation(NamedTuple):
    """A prompt and the text that a path made of it. `str` gives the whole text."""

    prompt: str
    text: str  # without the prompt
    path: int
    num_tokens: int  # tokens in the text
    seed: int  # seed of the draws
    has_ended: bool  # False: it was cut there

    def __str__(self) -> str:
        return self.prompt + self.text

    def __repr__(self) -> str:
        end = "ended by itself" if self.has_ended else "cut there"
        how = f"path {self.path}, {self.num_tokens} tokens, seed {self.seed}, {end}"
        return f"{self}\n({how})"


def prompt_tokens(run: Run, text: str) -> np.ndarray:
    """int32 [tokens] of a prompt: an empty one is the start of a text, where the run has one."""
    (tokens,) = run.corpus.tokenizer().encode([text])
    start = run.corpus.edges.tokens.start
    if not len(tokens) and start is not None:
        return np.array([start], np.int32)
    return np.asarray(tokens, np.int32)


def generate(
    config: ModelConfig,
    parts: Parts,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    grammars: Grammars | None = None,
    **wanted: Any,
) -> Iterator[int]:
    """Yields the tokens that follow a prompt under one path, each block as soon as it is made.

    Args:
      parts: the parameters of the path, as trained.
      grammars: the vocabulary to draw from. None = each id of the model is a token.
      wanted: other fields of `GenerationRequest`. The stop id that ends the text is yielded last.

    Raises `EmptyPrompt` and `ContextTooLong` by the call itself, not by the iterator.
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
    given = contextlib.nullcontext(prepared)
    loop = Loop(config, lambda *_: given, limits=limits, grammars=grammars)
    ids = tuple(prompt_ids)
    request = GenerationRequest(prompt_ids=ids, path=0, max_new_tokens=max_new_tokens, **wanted)
    return _tokens(loop, loop.submit(request))


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


def begin_text(
    run: Run,
    release: Release,
    prompt_ids: np.ndarray,
    read_ids: list[int],
    *,
    max_tokens: int,
    sampling: SamplingSettings,
    seed: int,
    path: int | None = None,
    rule: str | None = None,
    min_tokens: int = 0,
    ignore_eos: bool = False,
) -> tuple[PathChoice, Iterator[int]]:
    """The path of a prompt, int32 [tokens], and the tokens that it makes of what it reads, as
    `generate` yields them. With `ignore_eos` the text's end is a token like any other. Raises as
    `continue_text`.
    """
    check_fits(run.config.model, read_ids)
    choice = dispatch(run, release, prompt_ids, path, rule=rule)
    tokens = generate(
        run.config.model,
        run.path_of(release, choice.path),
        read_ids,
        max_new_tokens=max_tokens,
        sampling=sampling,
        seed=seed,
        stop_ids=frozenset() if ignore_eos else run.corpus.edges.tokens.stop_ids,
        min_new_tokens=min_tokens,
        grammars=Grammars(vocabulary_of(run)),
    )
    return choice, tokens


def continue_text(
    run: Run, release: Release, prompt: str, *, seed: int, **wanted: Any
) -> Continuation:
    """Continues a prompt until the text ends, or by `max_tokens`, as `begin_text` does. Without a
    path the router chooses it, by a rule, None = `routing.rule`.

    Raises:
      EmptyPrompt, ContextTooLong: the prompt has no token, or fills the context.
      ReleaseOfOtherRouter, NotAllPaths: as `dispatch`.
    """
    ids = prompt_tokens(run, prompt)
    choice, tokens = begin_text(run, release, ids, ids.tolist(), seed=seed, **wanted)
    ids = list(tokens)
    has_ended = bool(ids) and ids[-1] == run.corpus.edges.tokens.end
    text_ids = ids[:-1] if has_ended else ids
    text = run.corpus.tokenizer().decode(text_ids)
    return Continuation(prompt, text, choice.path, len(text_ids), seed, has_ended)


def paths_of_texts(
    run: Run, release: Release, texts: Sequence[str], rule: str | None = None
) -> np.ndarray:
    """The path of each text by its first tokens, int32 [N], as one prompt after another would be
    sent. Raises as `paths_of_prefixes`, and `EmptyPrompt` for a text without a token.
    """
    routing = routing_by(run, rule)
    if not is_routed(run, release):
        return np.zeros(len(texts), np.int32)
    start = run.corpus.edges.tokens.start
    prompts = [without_start(prompt_tokens(run, text), start) for text in texts]
    for prompt in prompts:
        check_fits(run.config.model, prompt[: run.config.data.prefix_tokens].tolist())
    if not prompts:
        return np.zeros(0, np.int32)
    return paths_of_prefixes(run, release, routing, *prefixes_of(run, prompts))


def vocabulary_of(run: Run) -> GrammarVocabulary:
    """The vocabulary that the loops of a run draw from."""
    corpus, size = run.corpus, run.config.model.vocab_size
    return GrammarVocabulary(corpus.tokenizer().library.to_str(), size, corpus.edges.tokens.end)
