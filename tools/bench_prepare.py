"""Measures the speed of preparing a corpus, and the peak memory of all its processes together.

    python tools/bench_prepare.py --megabytes 1000

Writes that many megabytes of made-up JSON lines into a temporary folder, prepares them in a
separate process, and adds up the proportional memory (PSS) of that process and its children every
tenth of a second. Linux only.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.command_line import parser_of
from support.process_cost import memory_of_all

PREPARE = """
import sys
from dipaco.data.config import DataConfig
from dipaco.data.prepare import prepare
config = DataConfig(
    sources=(f"jsonl:{sys.argv[1]}",), processes=int(sys.argv[3])
)
corpus = prepare(config, sys.argv[2])
print(corpus.manifest.tokens, corpus.num_documents, corpus.digest)
"""


def write_text(file: Path, megabytes: int) -> None:
    """Documents of about 4 KB in words that recur as words do (Zipf), in ten domains."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=2 + i % 9)) for i in range(50_000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    # Drawn once and re-ordered by number: drawing every word again takes longer than preparing.
    stock = rng.choices(words, weights=weights, k=2_000_000)
    written, number = 0, 0
    with file.open("w") as stream:
        while written < megabytes * 1_000_000:
            start = rng.randrange(len(stock) - 800)
            text = f"{number} " + " ".join(stock[start : start + 800])
            line = json.dumps({"text": text, "domain": f"domain_{number % 10}"})
            stream.write(line + "\n")
            written += len(text)
            number += 1


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="of text (100)")
    parser.add_argument("--processes", type=int, default=0, help="that tokenise (one a CPU)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.jsonl"
        write_text(text, arguments.megabytes)
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(text), f"{name}/corpus", str(arguments.processes)],
            stdout=subprocess.PIPE,
            text=True,
        )
        most = 0
        while process.poll() is None:
            most = max(most, memory_of_all(process.pid))
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        if process.returncode:
            raise SystemExit(process.returncode)
        assert process.stdout
        tokens, documents, digest = process.stdout.read().split()
        result = {
            "megabytes": arguments.megabytes,
            "seconds": round(seconds, 1),
            "megabytes_per_second": round(arguments.megabytes / seconds, 2),
            "most_memory_megabytes": round(most / 1e6),
            "tokens": int(tokens),
            "documents": int(documents),
            "digest": digest,
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
