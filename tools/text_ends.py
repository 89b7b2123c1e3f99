"""How many texts end by themselves within the context?

  python tools/text_ends.py --run runs/quickstart
  python tools/text_ends.py --run runs/quickstart --documents 500 --arm dense

Every prompt is the first tokens (`data.prefix_tokens`) of a validation document, continued by the
path that the router picks until the text ends or the context is full: greedily, and drawn at
temperature 1. Beside it the share of these documents that end within the context themselves, which
is what a model that knows its text would come to; and texts that begin with nothing at all, drawn.

Prints a table, then a line of JSON.
"""

import argparse
import contextlib
import json
import queue
from pathlib import Path

import numpy as np

from dipaco.config import MODULAR
from dipaco.model.inference import prepare
from dipaco.runs.opening import reading
from dipaco.runs.routing import features, router_of
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish, GenerationRequest, Stream

GREEDY, DRAWN = SamplingSettings(), SamplingSettings(temperature=1.0)
ROWS = 32


def share_ended(
    loop: Loop, prompts: list[np.ndarray], paths: np.ndarray, end: int, sampling: SamplingSettings
) -> float:
    """Of the prompts, each continued by its path until its text ends or the context is full."""
    streams = [
        loop.submit(
            GenerationRequest(
                prompt_ids=tuple(prompt.tolist()),
                path=int(path),
                max_new_tokens=loop.config.max_length - len(prompt),
                sampling=sampling,
                seed=number,
                stop_ids=frozenset({end}),
            )
        )
        for number, (prompt, path) in enumerate(zip(prompts, paths, strict=True))
    ]
    while loop.run_once():
        pass
    return float(np.mean([finish_of(stream).reason == "stop" for stream in streams]))


def finish_of(stream: Stream) -> Finish:
    """The end of a stream that has ended."""
    while True:
        try:
            item = stream.get(timeout_seconds=0)
        except queue.Empty as error:
            raise SystemExit("a text has no end: the loop stopped early") from error
        if isinstance(item, Finish):
            if item.error is not None:
                raise item.error
            return item


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--arm", default=MODULAR, help=f"of the run ({MODULAR})")
    parser.add_argument("--documents", type=int, default=300, help="of the validation split (300)")
    options = parser.parse_args()
    with reading(options.run) as run:
        corpus, model, data = run.corpus, run.config.model, run.config.data
        edges = corpus.edges.tokens
        if edges.end is None:
            raise SystemExit("texts of this run have no end (`data.end_of_text`)")
        release = run.ledger.facts.release(options.arm, None)
        documents = corpus.documents("valid")[: options.documents]
        prompts = [tokens[: data.prefix_tokens] for tokens in corpus.tokens(documents)]
        paths = np.zeros(len(prompts), np.int32)
        if len(release.paths) > 1:
            lengths = np.full(len(prompts), data.prefix_tokens, np.int32)
            paths = router_of(run, release).assign(features(run, np.stack(prompts), lengths))[:, 0]
        prepared = [prepare(model, run.path_of(release, p)) for p in range(len(release.paths))]
        within = corpus.edges.ends_N[documents] & (corpus.lengths[documents] < model.max_length)
    limits = LoopLimits(rows=ROWS, rows_per_path=ROWS, waiting=len(prompts))
    loop = Loop(model, lambda _, path: contextlib.nullcontext(prepared[path]), limits=limits)
    shares = {"documents": float(np.mean(within))}
    for name, sampling in (("greedy", GREEDY), ("drawn", DRAWN)):
        shares[name] = share_ended(loop, prompts, paths, edges.end, sampling)
    if edges.start is not None:
        nothing = [np.array([edges.start], np.int32)] * len(prompts)
        shares["drawn_from_nothing"] = share_ended(loop, nothing, paths, edges.end, DRAWN)
    print(f"texts of {len(prompts)} that end within {model.max_length} tokens:")
    for name, share in shares.items():
        print(f"  {name.replace('_', ' '):20} {share:6.1%}")
    print(json.dumps({name: round(share, 4) for name, share in shares.items()}))


if __name__ == "__main__":
    main()
