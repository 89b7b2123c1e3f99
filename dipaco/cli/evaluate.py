"""Perplexity of your own documents, each cut to the context, without the routing prefix.

  dipaco evaluate --run runs/quickstart --documents notes.txt
  dipaco evaluate --run runs/quickstart --documents docs.jsonl --path 2 --json

FILE is .jsonl, .jsonl.gz or .parquet with a column `text`, or a text file, which is one document
(or one for each megabyte). The router picks the path of each document; with `--path` all go to one.
"""

import argparse
import json
from pathlib import Path

from dipaco.cli.options import add_release, check_path, find_release

HELP = "perplexity of your own documents"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    parser.add_argument(
        "--documents", type=Path, required=True, metavar="FILE", help="the documents to evaluate"
    )
    parser.add_argument("--path", type=int, default=None, help="use this path for all documents")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(options: argparse.Namespace) -> int:
    from dipaco.caches import cache_folder
    from dipaco.data.sources import open_source, source_of_file
    from dipaco.errors import BadSource
    from dipaco.runs.evaluate_texts import evaluate_texts
    from dipaco.runs.opening import reading
    from dipaco.runs.programs import use_compilation_cache

    if not options.documents.is_file():
        raise BadSource(
            source=options.documents, problem="there is no such file.", advice="Check the name."
        )
    use_compilation_cache(cache_folder() / "compiled")
    with reading(options.run) as opened:
        release = find_release(opened, options)
        check_path(options.path, release)
        source = open_source(source_of_file(options.documents))
        texts = (document.text for document in source.documents)
        result = evaluate_texts(opened, release, texts, options.path)
    if options.json:
        print(json.dumps({"arm": release.arm, "phase": release.phase, **result}))
    else:
        skipped = result["too_short"]
        print(
            f"perplexity {result['perplexity']:.3f} over {result['tokens']:,} tokens of "
            f"{result['documents']:,} documents"
            + (f" ({skipped} too short to evaluate)" if skipped else "")
        )
        for path, count in sorted(result["paths"].items(), key=lambda item: -item[1]):
            print(f"  path {path}: {count:,} documents")
    return 0
