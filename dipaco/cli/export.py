"""Write one path, or every path and the router, for other engines: stock Hugging Face checkpoints
(config, safetensors, tokenizer), or GGUF for llama.cpp.

  dipaco export --run runs/quickstart --path 2 --out exported
  dipaco export --run runs/quickstart --all --out exported        exported/path_0000, ...
  python -c "from transformers import AutoModelForCausalLM as M; M.from_pretrained('exported')"
  python exported/route.py "And God said"                         the path, without dipaco

Beside them is a model card, README.md, made from the report: name a licence in it, then
`dipaco push`. `--all` writes `router.json` as well, which `dipaco serve --upstream` reads. Paths
that share a module share its file, where the file system has links: a file that is edited changes
in all of them. Interrupted, the same command continues with the next path.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from dipaco.cli.options import (
    add_json,
    add_release,
    add_rule,
    check_path,
    find_release,
    output_path,
)
from dipaco.plural import counted

HELP = "write one path, or all and the router, for other engines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--path", type=int, help="which path")
    which.add_argument("--all", action="store_true", help="every path, each in a folder of its own")
    parser.add_argument(
        "--out", type=output_path, required=True, metavar="DIR2", help="a new folder"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights (float32)"
    )
    parser.add_argument(
        "--gguf", action="store_true", help="a file for llama.cpp: DIR2, with `--all` of each path"
    )
    add_rule(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading
    from dipaco.runs.reading.card import model_card
    from dipaco.runs.reading.export import Format, export_all, export_path

    how = Format(options.dtype, options.gguf)
    with reading(options.run) as opened:
        release = find_release(opened, options)
        if options.all:
            targets, problem = export_all(opened, release, options.out, how, options.rule)
        else:
            check_path(options.path, release)
            card = None if options.gguf else model_card(opened, release, options.path)
            export_path(opened, release, options.path, options.out, how, card=card)
            targets, problem = {options.path: options.out}, None
    if problem is not None:
        print(f"no router was written: {problem}", file=sys.stderr)
    files = {
        path: [file.stat() for file in (at.iterdir() if at.is_dir() else [at])]
        for path, at in targets.items()
    }
    every = [file for of_path in files.values() for file in of_path]
    said: dict[str, Any] = {
        "arm": release.arm,
        "phase": release.phase,
        "bytes_on_disk": sum({(file.st_dev, file.st_ino): file.st_size for file in every}.values()),
        "paths": [
            {
                "path": path,
                "at": str(at),
                "bytes": sum(file.st_size for file in files[path]),
                "modules": list(release.paths[path]),
            }
            for path, at in targets.items()
        ],
    }
    print(json.dumps(said) if options.json else _table(said))
    return 0


def _table(said: Mapping[str, Any]) -> str:
    """The place, bytes and modules of each path, and the bytes of all."""
    rows = [("path", "at", "MB", "modules")]
    for each in said["paths"]:
        size = f"{each['bytes'] / 1e6:,.1f}"
        rows.append((str(each["path"]), each["at"], size, " + ".join(each["modules"])))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{path:>{widths[0]}}  {at:<{widths[1]}}  {size:>{widths[2]}}  {modules}"
        for path, at, size, modules in rows
    ]
    whole = f"{counted(len(said['paths']), 'path')} of {said['arm']} at phase {said['phase']}"
    return "\n".join([*lines, f"{whole}: {said['bytes_on_disk'] / 1e6:,.1f} MB on disk"])
