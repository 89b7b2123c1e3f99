"""Write one path as a stock Hugging Face checkpoint: config, safetensors, tokenizer.

dipaco export --run runs/quickstart --path 2 --out exported
python -c "from transformers import AutoModelForCausalLM as M; M.from_pretrained('exported')"
"""

import argparse
from pathlib import Path

from dipaco.cli.releases import add_release, check_path, find_release

HELP = "write one path as a Hugging Face checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    parser.add_argument("--path", type=int, required=True, help="which path")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR2", help="a new folder")


def run(options: argparse.Namespace) -> int:
    from dipaco.model.huggingface import export_checkpoint
    from dipaco.runs.run import reading
    from dipaco.store.objects import said_plainly

    with reading(options.run) as opened:
        release = find_release(opened, options)
        check_path(options.path, release)
        parts = opened.path_of(release, options.path)
        with said_plainly(options.out):
            export_checkpoint(opened.config.model, parts, opened.corpus.tokenizer_file, options.out)
    modules = " + ".join(release.paths[options.path])
    print(
        f"path {options.path} ({modules}) of {release.arm} at phase {release.phase}: {options.out}"
    )
    return 0
