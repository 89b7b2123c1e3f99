"""Write one path, or every path, as stock Hugging Face checkpoints: config, safetensors, tokenizer.

  dipaco export --run runs/quickstart --path 2 --out exported
  dipaco export --run runs/quickstart --all --out exported        exported/path_0000, ...
  python -c "from transformers import AutoModelForCausalLM as M; M.from_pretrained('exported')"

Each checkpoint is complete, so all paths together take more space than the run's modules, which
paths share. The table at the end shows how much. Interrupted, the same command continues with the
next path.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.options import add_release, check_path, find_release, output_path

if TYPE_CHECKING:
    from dipaco.control.planning.release import Release

HELP = "write one path, or all, as Hugging Face checkpoints"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_release(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--path", type=int, help="which path")
    which.add_argument("--all", action="store_true", help="every path, each in a folder of its own")
    parser.add_argument(
        "--out", type=output_path, required=True, metavar="DIR2", help="a new folder"
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading
    from dipaco.runs.reading.export import export_all, export_path

    with reading(options.run) as opened:
        release = find_release(opened, options)
        if options.all:
            print(_table(export_all(opened, release, options.out), release))
            return 0
        check_path(options.path, release)
        export_path(opened, release, options.path, options.out)
    modules = " + ".join(release.paths[options.path])
    print(
        f"path {options.path} ({modules}) of {release.arm} at phase {release.phase}: {options.out}"
    )
    return 0


def _table(folders: dict[int, Path], release: "Release") -> str:
    """Folder, bytes and modules of each path, and the total."""
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
