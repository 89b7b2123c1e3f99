"""Origins of a new run: a Hugging Face checkpoint, or the modules or the base model of another run.

The bytes are copied into the new run when it begins, and their receipts recorded in its ledger, so
the origin may be deleted afterwards.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dipaco.config import MODULAR, RunConfig
from dipaco.data.config import (
    DataConfig,
    EdgeNames,
    corpus_settings,
    data_from,
    edge_names,
    name_in_full,
)
from dipaco.data.errors import BadTokenizer
from dipaco.data.tokenizer import Tokenizer, edge_names_of_checkpoint, edge_tokens, load_tokenizer
from dipaco.files import link_folder
from dipaco.model.config import ModelConfig
from dipaco.receipt import Receipt
from dipaco.runs.opening import reading
from dipaco.runs.reading.progress import base_costs, costs_of_start
from dipaco.runs.rules import Recorded
from dipaco.runs.run import Run
from dipaco.schedule.plan import BASE
from dipaco.store.address import Address, Where
from dipaco.store.errors import BadRun
from dipaco.store.layout import Layout
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_tree, save_tree
from dipaco.topology import ModuleId, Topology
from dipaco.workers.errors import CannotStartFrom, OptionTooLate
from dipaco.workers.origin_modules import sources_of
from dipaco.workers.origin_router import check_router, comes_from_base, notes_on_router

Given = Mapping[str, Any]


def from_checkpoint(config: RunConfig, where: Where, checkpoint: Path) -> Given:
    """All modules start from a Hugging Face checkpoint after `base.steps` of pre-training. Its
    tokenizer is used, and its tokens for the start and the end of a text.

    Raises:
      CannotStartFrom: its sizes differ from `config.model`.
    """
    from dipaco.model.huggingface import read_checkpoint

    found, parts = read_checkpoint(checkpoint)
    _check_model(str(checkpoint), found, config.model)
    tokenizer_file = checkpoint / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise CannotStartFrom(source=checkpoint, problem="it has no tokenizer.json")
    tokenizer = load_tokenizer(tokenizer_file)
    names = edge_names_of_checkpoint(checkpoint, tokenizer)
    edges = _edges(config.data, str(checkpoint), tokenizer, names)
    objects = Address.of(where).objects()  # nothing is copied before all is checked
    return {
        "origin": _origin(checkpoint, None),
        "base": save_tree(objects, "modules", parts),
        "tokenizer": _save_tokenizer(objects, tokenizer_file),
        **edges,
    }


def parse_start(source: str) -> tuple[Address, str]:
    """The run and the phase, or `base`, of `DIR@PHASE`. Raises `CannotStartFrom`."""
    name, _, phase = source.rpartition("@")
    is_number = phase.isascii() and phase.isdecimal()
    if not name or not (is_number or phase == BASE):
        problem = "expected DIR@PHASE or DIR@base, for example runs/quickstart@4"
        raise CannotStartFrom(source=source, problem=problem)
    try:
        return Address.parse(name), phase
    except BadRun as error:  # its sentence speaks of `--run`
        given, problem = error.values["given"], error.values["problem"]
        raise CannotStartFrom(source=given, problem=problem) from error


def from_run(config: RunConfig, where: Where, source: str, rules: Recorded | None = None) -> Given:
    """Modules start from another run's when a phase began, `DIR@PHASE`, or from its base
    model, `DIR@base`. The base model, the tokenizer and, for the same number of paths, the router
    come from there too, and nothing is pre-trained. Own rules come from `rules` alone.

    Raises:
      CannotStartFrom: `source` is not of that form, the paths would be others than there
        (`sources_of`), their documents are routed by another rule, or, for the base model, the
        text is another one.
    """
    address, phase = parse_start(source)
    with reading(address) as other:
        _check_model(source, other.config.model, config.model)
        if phase == BASE:
            return _from_base(config, Address.of(where), source, other, rules or {})
        _check_tokenizer(source, other, config.data)
        if int(phase) > other.config.phases:
            problem = f"that run has {other.config.phases} phases"
            raise CannotStartFrom(source=source, problem=problem)
        there = other.ledger.facts.receipts_at(MODULAR, int(phase))
        if len(there) < len(other.config.topology.modules):
            problem = f"its modules have reached phases 0 to {other.phases_reached}, not {phase}"
            raise CannotStartFrom(source=source, problem=problem)
        _check_not_cleaned(source, other, int(phase))
        if other.config.num_paths == config.num_paths:
            check_router(source, other, config, rules or {})
        modules = _modules(source, other, there, config.topology)
        edges = _edges(config.data, source, other.corpus.tokenizer(), other.corpus.edge_names)
        objects = Address.of(where).objects()
        given: dict[str, Any] = {
            "origin": _origin(None, source),
            "base": save_tree(objects, "modules", other.base_parts()),
            "base_is_trained": True,
            "base_costs": base_costs(other)._asdict(),
            "start_costs": costs_of_start(
                other,
                int(phase),
                source,
                is_measured_alike=_measures_alike(other.config, config)
                and other.rules == (rules or {}),
            )._asdict(),
            "tokenizer": _save_tokenizer(objects, other.corpus.tokenizer_file),
            **edges,
            "modules": {
                str(module): save_tree(objects, "modules", parts)
                for module, parts in modules.items()
            },
        }
        if other.config.num_paths == config.num_paths:
            given["notes"] = [
                *given["notes"],
                *notes_on_router(source, other, config, int(phase)),
            ]
            routing = other.routing_of(MODULAR, int(phase))
            router = other.objects.read_bytes(routing.artifacts["router"])
            given["router"] = objects.write_bytes("routers", "safetensors", router)
    return given


def _from_base(
    config: RunConfig, where: Address, source: str, other: Run, rules: Recorded
) -> Given:
    """Text, tokenizer and base model of another run, for any topology. The router comes too if it
    was fitted as this run's would be, for as many paths.

    The corpus is linked if both runs are in folders, and else prepared again. `corpus` is the
    digest that it must have.
    """
    base = other.plan.base
    if not other.ledger.facts.modules_at(base.name, base.phases):
        raise CannotStartFrom(source=source, problem="its base model is not trained yet")
    there, here = corpus_settings(other.config.corpus), corpus_settings(config.corpus)
    changed = [
        f"`{name_in_full(name)}` is {there[name]} there and {here[name]} here"
        for name in here
        if there[name] != here[name]
    ]
    if changed:
        problem = f"{'; '.join(changed)}. It comes with its text and its tokenizer"
        raise CannotStartFrom(source=source, problem=problem)
    objects, costs = where.objects(), base_costs(other)
    given: dict[str, Any] = {
        "origin": _origin(None, source),
        "base": save_tree(objects, "modules", other.base_parts()),
        "base_is_trained": True,
        "base_costs": costs._asdict(),
        "corpus": other.corpus.digest,
    }
    if other.given("tokenizer") is not None:  # it did not train its own
        given["tokenizer"] = _save_tokenizer(objects, other.corpus.tokenizer_file)
        given["edge_names"] = list(other.corpus.edge_names)
    if comes_from_base(other, config, rules):
        routing = other.stage("route")
        router = other.objects.read_bytes(routing.artifacts["router"])
        given["router"] = objects.write_bytes("routers", "safetensors", router)
        carried = "text, tokenizer, base model and router"
    else:
        carried = "text, tokenizer and base model; the router is fitted here, to its features"
    given["notes"] = [f"From {source}: {carried}. The figures include that model's training."]
    if where.url is None and other.address.url is None:
        link_folder(other.layout.corpus, Layout(where.folder).corpus)
    return given


def _measures_alike(one: RunConfig, other: RunConfig) -> bool:
    """True if both configs give the same modules the same perplexity on the same text."""
    return all(
        getattr(one, name) == getattr(other, name) for name in ("topology", "routing", "evaluation")
    )


def check_origin(run: Run, init_from: Path | None, start_from: str | None) -> None:
    """Checks that an origin given again is the one that the run began with.

    Raises:
      OptionTooLate: it is not, and the run would silently go on without it.
      CannotStartFrom: it is not of its form.
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
        address, phase = parse_start(start_from)
        return f"--from {address.url or address.folder.resolve()}@{phase}"
    return None


def _modules(
    source: str, other: Run, there: Mapping[ModuleId, Receipt], topology: Topology
) -> dict[ModuleId, dict[str, Any]]:
    """Parts for every module of `topology`, from the modules of another run."""
    found = {}
    for module, sources in sources_of(source, other.config.topology, topology).items():
        loaded = {of: load_tree(other.objects, there[of]) for of in set(sources.values())}
        found[module] = {part: loaded[of][part] for part, of in sources.items()}
    return found


def _check_not_cleaned(source: str, other: Run, phase: int) -> None:
    """Refuses modules that `dipaco clean` has removed: of all phases but the last."""
    last = other.config.phases
    if other.ledger.cleanings.removed() is not None and phase != last:
        name = source.rpartition("@")[0]
        left = f"{name}@{last} and {name}@base are left"
        problem = f"`dipaco clean` has removed its modules of that phase; {left}"
        raise CannotStartFrom(source=source, problem=problem)


def _check_tokenizer(source: str, other: Run, wanted: DataConfig) -> None:
    """Refuses a tokenizer whose tokens are not the tokens that the other run was trained on."""
    if wanted.tokenizer is None:
        return
    here = load_tokenizer(Path(wanted.tokenizer))
    if here.library.get_vocab() != other.corpus.tokenizer().library.get_vocab():
        raise CannotStartFrom(
            source=source,
            problem=f"`data.tokenizer` ({wanted.tokenizer}) has other tokens than the tokenizer "
            "there, and rows of the embedding are those of its tokens. Leave it out, and that of "
            f"{source} is used",
        )


def _check_model(source: str, found: ModelConfig, wanted: ModelConfig) -> None:
    """Refuses other sizes. Settings that change no parameter's meaning may differ."""
    names = ("max_length", "compute_dtype", "result_dtype", "attention_kernel")
    free = {name: getattr(wanted, name) for name in names}
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
