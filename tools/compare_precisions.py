"""Losses of a path in float32 and in bfloat16, with results of products in float32 as on CPU and in
bfloat16 as on a GPU (`model.result_dtype`): the same 2,000 steps of real text in each.

    python tools/compare_precisions.py runs/quickstart/corpus

The quickstart's model and batches on the corpus of a run, all of it on one path; learning rate,
warm-up and cosine over these steps. Prints the mean loss of each tenth, and how far each bfloat16
lies above float32 in the last one: the last line is JSON.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

HOME = Path(__file__).parents[1]
PRECISIONS = {  # name: settings of the model
    "float32": {"compute_dtype": "float32"},
    "bfloat16": {"compute_dtype": "bfloat16", "result_dtype": "float32"},
    "bfloat16 results": {"compute_dtype": "bfloat16", "result_dtype": "bfloat16"},
}
TENTHS = 10


def losses_in(precision: str, corpus_folder: Path, steps: int) -> np.ndarray:
    """float32 [steps]: the loss of each step of a fresh path, nats."""
    from dipaco.data.corpus import Corpus
    from dipaco.data.pipeline import Batches
    from dipaco.data.shards import build_shard
    from dipaco.inner.optimizer import learning_rates
    from dipaco.inner.phase import run_phase
    from dipaco.overrides import load_config
    from dipaco.runs.programs import Programs

    config = load_config(HOME / "configs" / "quickstart.py")
    model = dataclasses.replace(config.model, **PRECISIONS[precision])
    programs = Programs(dataclasses.replace(config, model=model))
    corpus = Corpus.open(corpus_folder)
    plan = build_shard(corpus, 0, corpus.documents("train"), config.data.length, 0).plan
    batches = Batches(corpus, plan, config.inner.batch_size, seed=0)

    def tell(step: int, loss: float) -> None:
        if step % 100 == 0:
            print(f"{precision} step {step}: {loss:.3f}", file=sys.stderr, flush=True)

    return run_phase(
        programs.place(programs.initial_parts(), None, 0),
        map(programs.place_batch, batches.iterate(0, steps)),
        learning_rates(config.inner, steps, 0, steps),
        programs.step,
        on_step=tell,
    ).losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="a prepared one: RUN/corpus")
    parser.add_argument("--steps", type=int, default=2000, help="(2000)")
    arguments = parser.parse_args()

    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()
    losses = {name: losses_in(name, arguments.corpus, arguments.steps) for name in PRECISIONS}
    tenths = {name: np.array_split(values, TENTHS) for name, values in losses.items()}
    print("| steps | " + " | ".join(PRECISIONS) + " |\n| :-- |" + " --: |" * len(PRECISIONS))
    first = 1
    for parts in zip(*tenths.values(), strict=True):
        means = " | ".join(f"{part.mean():.4f}" for part in parts)
        print(f"| {first} to {first + len(parts[0]) - 1} | {means} |")
        first += len(parts[0])
    last = {name: float(parts[-1].mean()) for name, parts in tenths.items()}
    above = {name: round(loss - last["float32"], 5) for name, loss in last.items()}
    print(json.dumps({"steps": arguments.steps, "above_float32": above}))


if __name__ == "__main__":
    main()
