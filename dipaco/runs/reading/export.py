"""Paths of a release as Hugging Face checkpoints: config, safetensors, tokenizer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.control.planning.release import Release
from dipaco.errors import CheckpointExists
from dipaco.files import translate_os_errors, write_whole
from dipaco.model.huggingface import EdgeToken, export_checkpoint, is_exported
from dipaco.runs.run import Run

if TYPE_CHECKING:
    from dipaco.data.corpus import Corpus

RELEASE = "release.json"  # The folder of all paths holds it, and it names their release.


def export_path(run: Run, release: Release, path: int, folder: Path) -> None:
    """Writes one path. Raises `CheckpointExists`."""
    parts = run.path_of(release, path)
    with translate_os_errors(folder):
        export_checkpoint(
            run.config.model, parts, run.corpus.tokenizer_file, folder, **_edges(run.corpus)
        )


def _edges(corpus: "Corpus") -> dict[str, EdgeToken | None]:
    """The tokens that texts of a corpus begin and end with."""
    return {
        edge: None if token is None or name is None else EdgeToken(token, name)
        for edge, token, name in zip(
            ("start", "end"), corpus.edges.tokens, corpus.edge_names, strict=True
        )
    }


def export_all(run: Run, release: Release, folder: Path) -> dict[int, Path]:
    """Writes every path that an interrupted export has not written yet.

    Returns:
      path -> its folder, `path_0000`, ...

    Raises:
      CheckpointExists: the folder holds something else.
    """
    with translate_os_errors(folder):
        _begin_or_continue(folder, release)
    folders = {path: folder / f"path_{path:04d}" for path in range(len(release.paths))}
    for path, at in folders.items():
        if not is_exported(at):
            export_path(run, release, path, at)
    return folders


def _begin_or_continue(folder: Path, release: Release) -> None:
    """Makes the folder, or finds it begun with the same release. Raises `CheckpointExists`."""
    content = json.dumps(
        {"arm": release.arm, "phase": release.phase, "paths": release.paths}, indent=1
    ).encode()
    file = folder / RELEASE
    is_same = file.is_file() and file.read_bytes() == content
    if folder.exists() and not is_same and any(folder.iterdir()):
        raise CheckpointExists(folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda stream: stream.write(content))
