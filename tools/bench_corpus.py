"""Measures what a path's shard and its first batches take in a corpus of a terabyte of text.

    python tools/bench_corpus.py --files 5000 --documents 60000 --paths 256

Writes one file of made-up tokens and links it under every other name, so that the corpus has that
many files of 64 MB and needs the disk of one, and some bytes a document. Its documents are
dealt to paths at random. Prints CPU seconds, peak memory and open files after each step.
"""

import dataclasses
import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support.command_line import at_least_one, parser_of

from dipaco.data.config import CorpusConfig
from dipaco.data.corpus import Corpus
from dipaco.data.pipeline import Batches
from dipaco.data.prepare import prepare
from dipaco.data.shards import build_shard, hold_out
from dipaco.data.splits import SPLITS
from dipaco.data.token_files import TokenWriter
from dipaco.files import digest_of

LENGTHS = (200, 900)  # tokens of a document
VOCABULARY = 300
HELD_SHARE = 0.005
BATCHES = 8


def write_corpus(folder: Path, files: int, documents: int) -> None:
    """A corpus of `files` files, each of the same `documents` documents."""
    config = CorpusConfig(sources=("toy:?documents=80",), vocab_size=VOCABULARY)
    manifest = prepare(config, folder).manifest
    rng = np.random.default_rng(0)
    lengths = rng.integers(*LENGTHS, documents).astype(np.int32)
    writer = TokenWriter(folder / "all.arrayrecord")
    for length in lengths:
        writer.write(rng.integers(3, VOCABULARY - 10, length).astype(manifest.token_type))
    one, _ = writer.close()
    for old in manifest.files:
        (folder / old.name).unlink()
    names = [f"tokens_{number:05d}.arrayrecord" for number in range(files)]
    for name in names:
        os.link(folder / one.name, folder / name)
    count = files * documents
    splits = np.full(count, SPLITS.index("train"), np.uint8)
    splits[rng.integers(0, count, int(HELD_SHARE * count))] = SPLITS.index("router")
    edges = np.ones(count, bool)
    arrays = {
        "lengths": np.tile(lengths, files),
        "domains": np.zeros(count, np.load(folder / "domains.npy").dtype),
        "splits": splits,
        "begins": edges,
        "ends": edges,
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    manifest = dataclasses.replace(
        manifest,
        files=tuple(dataclasses.replace(one, name=name) for name in names),
        array_digests={name: digest_of(values) for name, values in arrays.items()},
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def measured(folder: Path, paths: int, rows: int, row_length: int) -> dict[str, dict[str, Any]]:
    """Step -> its CPU seconds, the peak memory of the process until then, and its open files."""
    steps: dict[str, dict[str, Any]] = {}
    since = time.process_time()

    def done(step: str) -> None:
        nonlocal since
        now = time.process_time()
        steps[step] = {
            "cpu_seconds": round(now - since, 2),
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
            "open_files": len(os.listdir("/proc/self/fd")),
        }
        print(f"{step:<24}{json.dumps(steps[step])}", flush=True)
        since = time.process_time()

    corpus = Corpus.open(folder)
    done("open")
    train = corpus.documents("train")
    path_N = np.random.default_rng(1).integers(0, paths, len(train), dtype=np.int32)
    documents = train[path_N == 0]
    done("deal documents")
    documents, _ = hold_out(corpus, documents, HELD_SHARE, shortest=32)
    done("hold out")
    shard = build_shard(corpus, 0, documents, row_length, seed=0)
    done("plan a path's rows")
    batches = Batches(corpus, shard.plan, rows, seed=0).iterate(0, 1 + BATCHES)
    next(batches)
    done("first batch")
    assert len(list(batches)) == BATCHES
    done(f"{BATCHES} more batches")
    return steps


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--files", type=at_least_one, default=200, help="of tokens (200)")
    parser.add_argument("--documents", type=at_least_one, default=60_000, help="in each (60,000)")
    parser.add_argument("--paths", type=at_least_one, default=256, help="that share them (256)")
    parser.add_argument("--rows", type=at_least_one, default=512, help="of a batch (512)")
    parser.add_argument("--length", type=at_least_one, default=1024, help="of a row (1,024)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "corpus"
        sizes = (arguments.files, arguments.documents)
        # In a process of its own, whose memory does not count.
        writer = multiprocessing.get_context("spawn").Process(
            target=write_corpus, args=(folder, *sizes)
        )
        writer.start()
        writer.join()
        if writer.exitcode:
            raise SystemExit(writer.exitcode)
        steps = measured(folder, arguments.paths, arguments.rows, arguments.length)
    print(json.dumps({"files": sizes[0], "documents": sizes[0] * sizes[1], "steps": steps}))


if __name__ == "__main__":
    main()
