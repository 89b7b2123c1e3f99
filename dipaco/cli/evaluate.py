"""Perplexity of your own text: every token after the first 32 of a document, in windows.

  dipaco evaluate --run runs/quickstart --documents notes.txt
  dipaco evaluate --run runs/quickstart --documents 'notes/**/*.md'
  dipaco evaluate --run runs/quickstart --documents 'jsonl:posts.jsonl?text=body' --path 2 --json

PLACE is a file, a glob (in quotes), a folder with .txt, .jsonl and .parquet files in it, or one
of `data.sources`. JSON lines and Parquet have their text in the column `text`. Any other
file is a text. A text is cut into documents as for training (`data.max_document_bytes`), the router
picks the path of each by its first tokens (`data.prefix_tokens`), which are not counted, and all
others are predicted in windows of `data.length`. With `--path` all documents go to one path. With
`--beginnings` only the first window of each document counts, as in the report of a run.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from dipaco.cli.options import add_json, add_release, add_rule, check_path, find_release

HELP = "perplexity of your own text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    parser.add_argument(
        "--documents",
        required=True,
        metavar="PLACE",
        help="the text to evaluate: a file, a glob, a folder, or a source",
    )
    parser.add_argument("--path", type=int, default=None, help="use this path for all documents")
    add_rule(parser)
    parser.add_argument(
        "--beginnings", action="store_true", help="only first windows of documents, as the report"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.data.source_url import ALL_SUFFIXES, notes_of_files, sources_of
    from dipaco.plural import counted
    from dipaco.runs.opening import reading
    from dipaco.runs.programs import use_compilation_cache
    from dipaco.runs.reading.evaluate_texts import evaluate_texts

    urls = sources_of(options.documents)
    for note in notes_of_files(options.documents, ALL_SUFFIXES):
        print(note, file=sys.stderr)
    use_compilation_cache()
    with reading(options.run) as opened:
        release = find_release(opened, options)
        check_path(options.path, release)
        texts = _texts(options.documents, urls)
        result = evaluate_texts(
            opened, release, texts, options.path, options.rule, beginnings=options.beginnings
        )
    if options.json:
        print(json.dumps({"arm": release.arm, "phase": release.phase, **result}))
    else:
        skipped = result["too_short"]
        print(
            f"perplexity {result['perplexity']:.3f}, {result['bits_per_byte']:.3f} bits per byte, "
            f"over {result['tokens']:,} of "
            f"{result['of_tokens']:,} tokens, in {counted(result['windows'], 'window')} of "
            f"{counted(result['documents'], 'document')}"
            + (f" ({skipped:,} too short to evaluate)" if skipped else "")
        )
        for path, count in sorted(result["paths"].items(), key=lambda item: -item[1]):
            print(f"  path {path}: {counted(count, 'document')}")
    return 0


def _texts(given: str, urls: Sequence[str]) -> Iterator[str]:
    """The texts of all sources. What cannot be read is counted on standard error.

    Raises:
      NoGoodRow: nothing can be read.
    """
    from dipaco.data.document import BadRows
    from dipaco.data.errors import NoGoodRow
    from dipaco.data.left_out import note_of_bad_rows
    from dipaco.data.source_url import parse_url
    from dipaco.data.sources import open_source

    has_any, bad = False, dict[str, BadRows]()  # The keys are kinds of sources.
    for url in urls:
        source = open_source(url, skip_bad_rows=True)
        for document in source.documents:
            has_any = True
            yield document.text
        for each, rows in source.bad_rows.items():
            kind = parse_url(each).kind
            bad[kind] = bad.get(kind, BadRows()).plus(rows)
    for kind, rows in bad.items():
        name = urls[0] if len(urls) == 1 else f"{kind}:{given}"
        if rows.count and not has_any:
            raise NoGoodRow(count=f"{rows.count:,}", source=name, first=rows.first)
        if rows.count:
            print(note_of_bad_rows(name, rows), file=sys.stderr)
