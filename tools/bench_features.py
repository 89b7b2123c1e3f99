"""What the feature pass costs beside a bare forward of the base model.

    python tools/bench_features.py runs/quickstart

The pass is what routing a corpus does: read the first tokens of its documents, take them through
the base model, and keep the mean of the last hidden states. The bare forward is the same jitted
model on the same batches, which lie in memory already, and waits for its last hidden states. Both
take every document once, in turn; the median of the ratios of pairs is reported. DiPaCo 2.4.

Ends with a line of JSON: documents, tokens of each, seconds of both, ratio.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import numpy as np
from support.paired_ratio import median_and_interval

from dipaco.data.windows import first_tokens
from dipaco.runs.opening import reading
from dipaco.runs.routing import BATCH_DOCUMENTS, features


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run that has its base model")
    parser.add_argument("--documents", type=int, default=10_240, help="at most so many")
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    with reading(options.run) as run:
        documents = run.corpus.documents("train")[: options.documents]
        length = run.config.data.prefix_tokens
        tokens_NT, _ = first_tokens(run.corpus, documents, length)
        starts = range(0, len(documents) - BATCH_DOCUMENTS + 1, BATCH_DOCUMENTS)
        batches = [jax.device_put(tokens_NT[start : start + BATCH_DOCUMENTS]) for start in starts]
        documents = documents[: len(batches) * BATCH_DOCUMENTS]
        hidden = run.base_hidden

        def whole() -> float:
            started = time.perf_counter()
            features(run, *first_tokens(run.corpus, documents, length))
            return time.perf_counter() - started

        def bare() -> float:
            started = time.perf_counter()
            for batch in batches:
                jax.block_until_ready(hidden(batch))
            return time.perf_counter() - started

        whole(), bare()  # compile
        taken = np.array([(whole(), bare()) for _ in range(options.pairs)])
    ratio, low, high = median_and_interval((taken[:, 0] / taken[:, 1]).tolist())
    seconds = [statistics.median(column) for column in taken.T.tolist()]
    print(f"features of {len(documents):,} documents, {length} tokens each: {seconds[0]:.3f} s")
    print(f"bare forward of the same batches: {seconds[1]:.3f} s")
    print(f"ratio {ratio:.2f} [{low:.2f}, {high:.2f}]")
    result = {
        "documents": len(documents),
        "tokens": length,
        "seconds": round(seconds[0], 3),
        "bare_seconds": round(seconds[1], 3),
        "ratio": round(ratio, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
