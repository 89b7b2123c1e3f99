"""Paths of a release for other engines: Hugging Face checkpoints or GGUF, and the router.

A folder of all paths has

    release.json                 the release, written first
    path_0000/, path_0001/ ...   checkpoints, one file a module. Paths that share one link its file
    router/                      values and tokenizer of the router, and the models that it reads by
    route.py                     chooses the path of a prompt, without dipaco
    router.json                  what `route.py` and `dipaco serve --upstream` read, with digests
    README.md                    the model card, written last and never again
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dipaco
from dipaco.control.planning.release import Release
from dipaco.errors import CheckpointExists
from dipaco.files import translate_os_errors, write_whole
from dipaco.model.config import ComputeDtype, ModelConfig
from dipaco.model.gguf_file import export_gguf
from dipaco.model.huggingface import (
    PLAIN_CHAT,
    EdgeToken,
    WeightFile,
    export_checkpoint,
    is_exported,
)
from dipaco.model.spec import Parts
from dipaco.routing.config import FEATURES, RANDOM, SMALL_MODELS
from dipaco.routing.router import OWN, save
from dipaco.runs.errors import ReleaseOfOtherRouter
from dipaco.runs.reading.card import CARD, model_card
from dipaco.runs.routing import router_of, routing_by
from dipaco.runs.run import Run
from dipaco.runs.small_models import small_config
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId, assemble

if TYPE_CHECKING:
    from dipaco.data.corpus import Corpus

RELEASE = "release.json"  # The folder of all paths holds it, and it names their release.
ROUTER = "router.json"


class Format(NamedTuple):
    """The format of an exported path."""

    dtype: ComputeDtype = "float32"
    is_gguf: bool = False

    def name(self, path: int) -> str:
        """The name of a path's folder, or of its file."""
        return f"path_{path:04d}" + (".gguf" if self.is_gguf else "")


FLOAT32 = Format()


def export_path(
    run: Run,
    release: Release,
    path: int,
    folder: Path,
    how: Format = FLOAT32,
    files: Mapping[str, WeightFile] | None = None,
    card: str | None = None,
) -> None:
    """Writes one path. Raises `CheckpointExists`, `NoGguf`.

    Args:
      folder: of the checkpoint, or a file of GGUF.
      files, card: as in `export_checkpoint`. Modules whose files are linked are not read.
    """
    linked = {part for file in (files or {}).values() if file.equal for part in file.parts}
    topology = run.plan.arm(release.arm).topology
    receipts = {
        module: receipt
        for module, receipt in release.modules_of(path).items()
        if not linked.issuperset(topology.parts_of(module))
    }
    modules = {module: load_tree(run.objects, receipt) for module, receipt in receipts.items()}
    parts = assemble(modules, tuple(receipts))
    with translate_os_errors(folder):
        _write(run, run.config.model, parts, folder, how, files, card)


def _write(
    run: Run,
    config: ModelConfig,
    parts: Parts,
    folder: Path,
    how: Format = FLOAT32,
    files: Mapping[str, WeightFile] | None = None,
    card: str | None = None,
) -> None:
    given = config, parts, run.corpus.tokenizer_file, folder
    start, end = _edges(run.corpus)
    chat = None if run.config.data.tokenizer else PLAIN_CHAT  # a given one has its own, or none
    if how.is_gguf:
        export_gguf(*given, start=start, end=end, dtype=how.dtype, chat=chat)
    else:
        export_checkpoint(
            *given, start=start, end=end, dtype=how.dtype, files=files, chat=chat, card=card
        )


def _edges(corpus: "Corpus") -> list[EdgeToken | None]:
    """The tokens that texts of a corpus begin and end with."""
    return [
        None if token is None or name is None else EdgeToken(token, name)
        for token, name in zip(corpus.edges.tokens, corpus.edge_names, strict=True)
    ]


def export_all(
    run: Run, release: Release, folder: Path, how: Format = FLOAT32, rule: str | None = None
) -> tuple[dict[int, Path], str | None]:
    """Writes every path that an interrupted export has not written yet, and the router.

    Args:
      rule: chooses a path. None = `routing.rule`.

    Returns:
      path -> its folder or file, and the reason why no router was written, if any.

    Raises:
      CheckpointExists: the folder holds something else.
    """
    try:
        facts = _facts(run, release, rule)
        problem = _not_alone(facts, how)
    except ReleaseOfOtherRouter as error:
        facts, problem = {}, str(error)
    with translate_os_errors(folder):
        _begin_or_continue(folder, release, how)
    targets = {path: folder / how.name(path) for path in range(len(release.paths))}
    for path, at in targets.items():
        if not (at.exists() if how.is_gguf else is_exported(at)):
            files = None if how.is_gguf else _files_of(run, release, path, targets)
            export_path(run, release, path, at, how, files)
    if problem is None:
        with translate_os_errors(folder):
            _export_router(run, release, folder, facts)
    if not (card := folder / CARD).exists():  # a person may have edited it
        text = model_card(run, release, is_gguf=how.is_gguf, has_router=problem is None)
        write_whole(card, lambda stream: stream.write(text.encode()))
    return targets, problem


def _files_of(
    run: Run, release: Release, path: int, folders: Mapping[int, Path]
) -> dict[str, WeightFile] | None:
    """The files of a path, one a module. Those that another path has are linked."""
    topology, files = run.plan.arm(release.arm).topology, {}
    for module, digest in release.paths[path].items():
        name = f"model-{module.replace('/', '-')}.safetensors"
        same = (folders[n] / name for n, at in enumerate(release.paths) if at.get(module) == digest)
        parts = frozenset(topology.parts_of(ModuleId.parse(module)))
        files[name] = WeightFile(parts, next((file for file in same if file.is_file()), None))
    return files if len(files) > 1 else None


def _begin_or_continue(folder: Path, release: Release, how: Format) -> None:
    """Makes the folder, or finds it begun with the same release. Raises `CheckpointExists`."""
    begun = {"arm": release.arm, "phase": release.phase, "paths": release.paths, **how._asdict()}
    content = json.dumps(begun, indent=1).encode()
    file = folder / RELEASE
    is_same = file.is_file() and file.read_bytes() == content
    if folder.exists() and not is_same and any(folder.iterdir()):
        raise CheckpointExists(folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda stream: stream.write(content))


# --- the router -----------------------------------------------------------------------------------


def _facts(run: Run, release: Release, rule: str | None) -> dict[str, Any]:
    """What a router is, beside its values. Its kind is None where every prompt goes to path 0."""
    arm, routing = run.plan.arm(release.arm), routing_by(run, rule)
    num_paths = arm.topology.num_paths
    kind = None
    if arm.is_routed and num_paths > 1:
        kind = OWN if "router" in run.rules else router_of(run, release).kind
    return {
        "dipaco": dipaco.__version__,
        "run": run.config.name,
        "arm": release.arm,
        "phase": release.phase,
        "release": release.digest,
        "kind": kind,
        "rule": routing.rule,
        "num_paths": num_paths,
        "num_compared": routing.num_compared(num_paths),
        "prior": routing.prior_nats,
        "prefix_tokens": run.config.data.prefix_tokens,
        "start": run.corpus.edges.tokens.start,
    }


def _not_alone(facts: Mapping[str, Any], how: Format) -> str | None:
    """The reason why a router cannot be used without dipaco."""
    if facts["kind"] == OWN:
        return "it is this run's own rule, a function in Python"
    if facts["kind"] == RANDOM:
        return "paths are drawn by the last bits of features, which differ from program to program"
    if facts["kind"] and facts["rule"] != FEATURES and how.is_gguf:
        return "by likelihood it reads the paths, which it cannot as GGUF. Leave out `--gguf`"
    return None


def _export_router(run: Run, release: Release, folder: Path, facts: dict[str, Any]) -> None:
    at = folder / "router"
    at.mkdir(exist_ok=True)
    for name, content in _router_files(run, release, facts):
        write_whole(at / name, lambda stream, content=content: stream.write(content))
    models: Iterator[tuple[str, ModelConfig, Parts]] = iter(())
    if facts["kind"] == SMALL_MODELS:
        config = small_config(run.config.model, facts["prefix_tokens"])
        models = (
            (f"path_{path:04d}", config, run.small_models[name])
            for path, name in enumerate(sorted(run.small_models))
        )
    elif facts["kind"] is not None:
        models = iter([("base", run.config.model, run.base_parts())])
    for name, config, parts in models:
        if not is_exported(at / name):
            _write(run, config, parts, at / name)
    weights = at.rglob("*.safetensors")
    digests = {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted([*weights, at / "tokenizer.json"])
    }
    content = json.dumps(facts | {"digests": digests}, indent=1).encode()
    shutil.copyfile(Path(__file__).with_name("route.py.txt"), folder / "route.py")
    write_whole(folder / ROUTER, lambda stream: stream.write(content))


def _router_files(
    run: Run, release: Release, facts: Mapping[str, Any]
) -> Iterator[tuple[str, bytes]]:
    yield "tokenizer.json", run.corpus.tokenizer_file.read_bytes()
    if facts["kind"] is not None:
        yield "router.safetensors", save(router_of(run, release))
