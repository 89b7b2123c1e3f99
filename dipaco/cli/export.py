"""Write one path, or every path, as stock Hugging Face checkpoints: config, safetensors, tokenizer.

  dipaco export --run runs/quickstart --path 2 --out exported
  dipaco export --run runs/quickstart --all --out exported        exported/path_0000, ...
  python -c "from transformers import AutoModelForCausalLM as M; M.from_pretrained('exported')"

A checkpoint is whole in itself, so all paths together take more than the run's modules, which paths
share; the table at the end says how much. Interrupted, the same command goes on with the next path.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import add_release, check_path, find_release

if TYPE_CHECKING:
    from dipaco.control.release import Release

RELEASE = "release.json"  # in the folder of all paths: which one they are of

HELP = "write one path, or all, as Hugging Face checkpoints"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--path", type=int, help="which path")
    which.add_argument("--all", action="store_true", help="every path, each in a folder of its own")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR2", help="a new folder")


def run(options: argparse.Namespace) -> int:
    from dipaco.files import translate_os_errors
    from dipaco.model.huggingface import export_checkpoint, is_exported
    from dipaco.runs.run import reading

    with reading(options.run) as opened:
        release = find_release(opened, options)
        check_path(options.path, release)
        if options.all:
            with translate_os_errors(options.out):
                _begin_or_go_on(options.out, release)
        paths = range(len(release.paths)) if options.all else [options.path]
        folders = {p: options.out / f"path_{p:04d}" if options.all else options.out for p in paths}
        for path, folder in folders.items():
            if options.all and is_exported(folder):
                continue  # by a command that was interrupted
            parts = opened.path_of(release, path)
            with translate_os_errors(folder):
                export_checkpoint(opened.config.model, parts, opened.corpus.tokenizer_file, folder)
    if options.all:
        print(_table(folders, release))
    else:
        modules = " + ".join(release.paths[options.path])
        print(
            f"path {options.path} ({modules}) of {release.arm} at phase {release.phase}: ", end=""
        )
        print(options.out)
    return 0


def _begin_or_go_on(folder: Path, release: "Release") -> None:
    """Makes the folder, or finds it begun with the same release. Raises `CheckpointExists`."""
    import json

    from dipaco.errors import CheckpointExists
    from dipaco.files import write_whole

    told = {"arm": release.arm, "phase": release.phase, "paths": release.paths}
    content = json.dumps(told, indent=1).encode()
    file = folder / RELEASE
    is_same = file.is_file() and file.read_bytes() == content
    if folder.exists() and not is_same and any(folder.iterdir()):
        raise CheckpointExists(folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda stream: stream.write(content))


def _table(folders: dict[int, Path], release: "Release") -> str:
    """Path, folder, bytes and modules of each, and what they take together."""
    sizes = {
        path: sum(file.stat().st_size for file in folder.iterdir())
        for path, folder in folders.items()
    }
    rows = [("path", "folder", "MB", "modules")]
    for path, folder in folders.items():
        modules = " + ".join(release.paths[path])
        rows.append((str(path), str(folder), f"{sizes[path] / 1e6:,.1f}", modules))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{path:>{widths[0]}}  {folder:<{widths[1]}}  {size:>{widths[2]}}  {modules}"
        for path, folder, size, modules in rows
    ]
    apart, shared = sum(sizes.values()), sum(r.num_bytes for r in release.objects.values())
    lines.append(
        f"{len(folders)} paths of {release.arm} at phase {release.phase}: {apart / 1e6:,.1f} MB; "
        f"the run keeps their modules in {shared / 1e6:,.1f} MB"
    )
    return "\n".join(lines)
