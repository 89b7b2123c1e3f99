"""How fast contributions are encoded and decoded, and how many bits they take: every codec in turn.

    python tools/bench_codecs.py
    python tools/bench_codecs.py --megavalues 1 --rounds 3

A gradient of blocks and of a vocabulary of 32,000 tokens of a path of the paper's width (896), as
wide as `--megavalues` says, half of each, drawn from a normal distribution times a scale for each
row. Milliseconds for a million values, with error feedback on the way there as a path has it: the
residual added, encoded, decoded, subtracted. Medians over the rounds, in which codecs come in turn;
ratios are to int8. Times are of the processor (`time.process_time`), so that work beside counts
less. The last line is one JSON object.
"""

import argparse
import json
import time

import numpy as np
from support.paired_ratio import median_and_interval

from dipaco import trees
from dipaco.outer.codecs.contract import Codec
from dipaco.outer.compress import codec_of, encode_contribution
from dipaco.outer.config import OuterSettings

WIDTH = 896
CODECS = {
    "none": OuterSettings(),
    "bfloat16": OuterSettings(codec="bfloat16"),
    "int8": OuterSettings(codec="int8"),
    "int4": OuterSettings(codec="int4"),
    "sparse2 128": OuterSettings(codec="sparse2", sparse_places=128, momentum=0.0),
    "sparse2 64": OuterSettings(codec="sparse2", sparse_places=64, momentum=0.0),
}
BASELINE = "int8"


def gradient(megavalues: float, seed: int) -> dict:
    """A quarter each of an embedding and of a head, half of a block."""
    rng = np.random.default_rng(seed)
    rows = max(1, round(megavalues * 1e6 / 4 / WIDTH))

    def leaf(rows: int) -> np.ndarray:
        scale = np.exp(rng.standard_normal((rows, 1), np.float32))
        return scale * rng.standard_normal((rows, WIDTH), np.float32)

    return {
        "block_00": {"feed_forward": {"up": leaf(2 * rows)}},
        "embed": {"table": leaf(rows)},
        "head": {"kernel": np.ascontiguousarray(leaf(rows).T)},
    }


def one_round(codec: Codec, tree: dict, residual: dict) -> tuple[float, float, float]:
    """Seconds there and back, and bits of the message."""
    started = time.process_time()
    sent = encode_contribution(codec, tree, residual if codec.is_lossy else None)
    encoded = time.process_time()
    codec.decode(sent.message, tree)
    return encoded - started, time.process_time() - encoded, 8.0 * trees.num_bytes(sent.message)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megavalues", type=float, default=8.0, help="of the gradient (8)")
    parser.add_argument("--rounds", type=int, default=12, help="(12)")
    options = parser.parse_args()

    tree, residual = gradient(options.megavalues, 0), gradient(options.megavalues, 1)
    values = sum(leaf.size for _, leaf in trees.flatten(tree))
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CODECS}
    for number in range(options.rounds + 1):
        names = list(CODECS) if number % 2 else list(reversed(CODECS))
        for name in names:
            times = one_round(codec_of(CODECS[name]), tree, residual)
            if number:  # the first warms up
                seen[name].append(times)

    print(f"{values / 1e6:.1f} million values; milliseconds of one core for a million")
    print(f"{'':12} {'bits':>7} {'there':>7} {'back':>7}   there / {BASELINE}")
    result = {}
    for name, rounds in seen.items():
        there, back, bits = (np.median(each) for each in zip(*rounds, strict=True))
        base = [each[0] for each in seen[BASELINE]]
        ratios = np.divide([each[0] for each in rounds], base)
        middle, low, high = median_and_interval(ratios.tolist())
        there, back = 1e9 * there / values, 1e9 * back / values
        print(
            f"{name:12} {bits / values:7.3f} {there:7.2f} {back:7.2f}   "
            f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        )
        result[name] = {
            "bits": round(bits / values, 4),
            "there_ms": round(there, 2),
            "back_ms": round(back, 2),
            f"there_vs_{BASELINE}": round(middle, 3),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
