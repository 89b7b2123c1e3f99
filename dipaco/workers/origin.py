"""What a new run may start from: a Hugging Face checkpoint, or the modules of another run.

The bytes are copied into the new run when it begins, and their receipts recorded in its ledger: the
origin may be deleted afterwards.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dipaco.config import MODULAR, RunConfig
from dipaco.data.config import DataConfig, EdgeNames, data_from, edge_names
from dipaco.data.edge_tokens import edge_names_of_checkpoint, edge_tokens
from dipaco.data.errors import BadTokenizer
from dipaco.data.tokenizer import Tokenizer, load_tokenizer
from dipaco.model.config import ModelConfig
from dipaco.receipt import Receipt
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.store.address import Address
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_tree, save_tree
from dipaco.topology import ModuleId, Topology
from dipaco.workers.errors import CannotStartFrom, OptionTooLate

Given = Mapping[str, Any]


def from_checkpoint(config: RunConfig, where: Path | Address, checkpoint: Path) -> Given:
    """All modules start from a Hugging Face checkpoint after `base.steps` of pre-training; its
    tokenizer is used, and its tokens for the start and the end of a text.

    Raises:
      CannotStartFrom: its sizes are not those of `config.model`.
    """
    from dipaco.model.huggingface import read_checkpoint

    found, parts = read_checkpoint(checkpoint)
    _check_model(str(checkpoint), found, config.model)
    objects = Address.of(where).objects()
    receipt = save_tree(objects, "modules", parts)
    tokenizer_file = checkpoint / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise CannotStartFrom(source=checkpoint, problem="it has no tokenizer.json")
    tokenizer = load_tokenizer(tokenizer_file)
    names = edge_names_of_checkpoint(checkpoint, tokenizer)
    return {
        "origin": _origin(checkpoint, None),
        "base": receipt,
        "tokenizer": _save_tokenizer(objects, tokenizer_file),
        **_edges(config.data, str(checkpoint), tokenizer, names),
    }


def from_run(config: RunConfig, where: Path | Address, source: str) -> Given:
    """Modules start as those of another run after a phase, `DIR@PHASE`. The base model, the
    tokenizer and, for the same number of paths, the router come from there too; nothing is
    pre-trained.

    Raises:
      CannotStartFrom: `source` is not of that form, or a module has no counterpart there.
    """
    name, at, phase = source.rpartition("@")
    if not at or not phase.isdigit():
        raise CannotStartFrom(
            source=source, problem="expected DIR@PHASE, for example runs/quickstart@4"
        )
    with reading(Address.parse(name)) as other:
        _check_model(source, other.config.model, config.model)
        there = other.ledger.facts.receipts_at(MODULAR, int(phase))
        if len(there) < len(other.config.topology.modules):
            whole = other.ledger.progress.phases_reached(
                MODULAR, len(other.config.topology.modules)
            )
            raise CannotStartFrom(
                source=source,
                problem=f"its modules have reached phases 0 to {whole}, not {phase}",
            )
        objects = Address.of(where).objects()
        given: dict[str, Any] = {
            "origin": _origin(None, source),
            "base": save_tree(objects, "modules", other.base_parts()),
            "base_is_trained": True,
            "tokenizer": _save_tokenizer(objects, other.corpus.tokenizer_file),
            **_edges(config.data, source, other.corpus.tokenizer(), other.corpus.edge_names),
            "modules": {
                str(module): save_tree(objects, "modules", parts)
                for module, parts in _modules(source, other, there, config.topology).items()
            },
        }
        if other.config.num_paths == config.num_paths:
            routing = other.routing_of(MODULAR, int(phase))
            router = other.objects.read_bytes(routing.artifacts["router"])
            given["router"] = objects.write_bytes("routers", "safetensors", router)
    return given


def check_origin(run: Run, init_from: Path | None, start_from: str | None) -> None:
    """Checks that an origin given again is the one that the run began with.

    Raises:
      OptionTooLate: it is not, and the run would silently go on without it.
    """
    named, began = _origin(init_from, start_from), run.given("origin")
    if named is not None and named != began:
        how = "without an origin" if began is None else f"with `{began}`"
        option = named.partition(" ")[0]
        raise OptionTooLate(folder=run.address, how=how, option=option)


def _origin(init_from: Path | None, start_from: str | None) -> str | None:
    """The option as it is recorded, independent of the current folder."""
    if init_from is not None:
        return f"--init-from {init_from.resolve()}"
    if start_from is not None:
        name, _, phase = start_from.rpartition("@")
        return f"--from {Address.parse(name).url or Path(name).resolve()}@{phase}"
    return None


def _modules(
    source: str, other: Run, there: Mapping[ModuleId, Receipt], topology: Topology
) -> dict[ModuleId, dict[str, Any]]:
    """Parts for every module of `topology`: from the same expert there, or from the only one."""
    owners: dict[str, dict[int, Receipt]] = {}  # part -> expert -> module's receipt
    for module, receipt in there.items():
        for part in other.config.topology.parts_of(module):
            owners.setdefault(part, {})[module.expert] = receipt
    found: dict[ModuleId, dict[str, Any]] = {}
    for module in topology.modules:
        found[module] = {}
        for part in topology.parts_of(module):
            experts = owners[part]
            receipt = (
                experts.get(module.expert) if len(experts) > 1 else next(iter(experts.values()))
            )
            if receipt is None:
                raise CannotStartFrom(
                    source=source,
                    problem=f"`{part}` has {len(experts)} experts there, so {module} has no "
                    "counterpart",
                )
            found[module][part] = load_tree(other.objects, receipt)[part]
    return found


def _check_model(source: str, found: ModelConfig, wanted: ModelConfig) -> None:
    """Sizes must be equal; settings that change no parameter's meaning may differ."""
    free = {"max_length": wanted.max_length, "compute_dtype": wanted.compute_dtype}
    before, now = dataclasses.asdict(found) | free, dataclasses.asdict(wanted)
    before |= {"num_kv_heads": found.kv_heads, "head_dim": found.head_size}
    now |= {"num_kv_heads": wanted.kv_heads, "head_dim": wanted.head_size}
    changed = [
        f"`model.{n}` is {before[n]} there and {now[n]} here" for n in now if before[n] != now[n]
    ]
    if changed:
        raise CannotStartFrom(source=source, problem="; ".join(changed))


def _edges(data: DataConfig, source: str, tokenizer: Tokenizer, there: EdgeNames) -> dict[str, Any]:
    """The edge tokens to go on with, and a note where texts end here and did not end there.

    Raises:
      CannotStartFrom: the tokenizer has no such special tokens.
    """
    here = edge_names(data_from(data, tokenizer.file, there))
    try:
        edge_tokens(tokenizer, here)
    except BadTokenizer as error:
        raise CannotStartFrom(source=source, problem=str(error).rstrip(".")) from error
    notes = []
    if here.end and not there.end:
        notes = [
            f"The model of {source} never saw the end of a text. Here texts end with "
            f"`{here.end}`, which it learns from now on."
        ]
    elif there.end and not here.end:
        notes = [
            f"Texts of {source} ended with `{there.end}`. Here they have no end "
            "(`data.end_of_text`), so nothing stops the model."
        ]
    elif there.end != here.end:
        notes = [f"Texts of {source} ended with `{there.end}`, and here end with `{here.end}`."]
    return {"edge_names": list(there), "notes": notes}


def _save_tokenizer(objects: Objects, file: Path) -> Receipt:
    return objects.write_bytes("tokenizers", "json", file.read_bytes())
