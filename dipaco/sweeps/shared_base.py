"""Text, tokens and base model, made once for all rows of a sweep that agree on them.

A *shared* run ends with its base model. Rows that agree with it on everything that the model
depends on begin with a copy of its ledger and with links to its objects. All work is deterministic,
so a row holds the facts that it would have made alone, bit for bit, and is otherwise an ordinary
run.
"""

import contextlib
import dataclasses
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from dipaco.config import RunConfig
from dipaco.control.ledger import install_ledger
from dipaco.data.config import corpus_settings
from dipaco.data.corpus import Corpus, read_manifest
from dipaco.data.errors import CorpusDamaged
from dipaco.errors import DipacoError
from dipaco.files import link_folder, make_folder, translate_os_errors
from dipaco.overrides import row_folder
from dipaco.runs.opening import ENDS_WITH_BASE, create_or_open, has_facts, reading
from dipaco.runs.rules import check_settings
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.errors import OtherBaseModel

# Inner settings that no base model depends on: the length of a phase, and how the shards of paths
# are used. What is held out, no base model reads (`base_digest`).
NOT_OF_THE_BASE = (
    "steps",
    "hold_out",
    "freeze_absent_tokens",
)


def corpus_digest(config: RunConfig) -> str:
    """Equal for configs whose prepared text has the same bytes."""
    return digest_of(corpus_settings(config.corpus))


def base_digest(config: RunConfig) -> str:
    """Equal for configs whose runs are equal, bit for bit, up to their base models."""
    inner = dataclasses.asdict(config.inner)
    held_out = {"hold_out": config.inner.hold_out} if config.inner.hold_out else {}
    return digest_of(
        held_out
        | {
            "slices": config.data.slices,  # a row goes on with the tasks of the shared run
            "seed": config.seed,
            "corpus": corpus_settings(config.corpus),
            "length": config.data.length,
            "model": dataclasses.asdict(config.model),
            "base": dataclasses.asdict(config.base),
            "inner": {name: inner[name] for name in inner if name not in NOT_OF_THE_BASE},
            "mesh": dataclasses.asdict(config.mesh),
        }
    )


def damage_of(text: Path) -> CorpusDamaged | None:
    """The damage of a prepared text, all of which is read. None = no damage."""
    try:
        Corpus.open(text).check_tokens()
    except CorpusDamaged as damage:
        return damage
    return None


def folder_with_text(
    layout: SweepLayout,
    config: RunConfig,
    first_row: str,
    damage_of: Callable[[Path], CorpusDamaged | None] = damage_of,
) -> Path | None:
    """The folder of a run of a sweep that has the prepared text of a config. None if no run has it.

    A source that is read again may have changed, and the rows of a sweep need one text. If there
    are several, the first row's is taken, since rows are compared with it, if possible under the
    same seed. Then comes the text that most runs have, and at last a replaced run's. A damaged text
    is left out: every file of the text is read.

    Args:
      first_row: the sweep's first row.
    """
    text = corpus_settings(config.corpus)
    digests: dict[Path, str] = {}
    for folder in (*layout.runs(), *layout.bases()):
        with contextlib.suppress(DipacoError):  # damaged, or none
            manifest = read_manifest(Layout(folder).corpus)
            if manifest.settings == text:
                digests[folder] = manifest.digest
    of_first = layout.row(row_folder(first_row), config.seed)
    replaced = layout.root / "replaced"
    times = Counter(digest for folder, digest in digests.items() if folder.parent != replaced)

    def place(folder: Path) -> tuple[bool, bool, int]:
        is_of_first = folder.parent == of_first.parent
        return not is_of_first, folder != of_first, -times[digests[folder]]

    ordered = sorted(digests, key=place)
    return next((each for each in ordered if not damage_of(Layout(each).corpus)), None)


def has_text(folder: Path) -> bool:
    """True if the run in a folder has its prepared text."""
    return (Layout(folder).corpus / "manifest.json").exists()


def begin_shared(folder: Path, config: RunConfig, find_text: Callable[[], Path | None]) -> None:
    """Begins the run that trains a base model, or has one go on that was begun.

    Args:
      find_text: finds a folder of a run with the same text, whose tokens are linked. None = read
        the text. Called only if this run lacks it.
    """
    ledger = Layout(folder).ledger
    is_there = ledger.exists()
    if is_there:
        with reading(folder) as run:
            run.ledger.failures.retry()
            has_begun = has_facts(run)
        if has_begun or has_text(folder):
            return
    prepared = None if has_text(folder) else find_text()
    with translate_os_errors(folder):
        if prepared is not None:
            shutil.rmtree(Layout(folder).corpus, ignore_errors=True)
            link_folder(Layout(prepared).corpus, Layout(folder).corpus)
        elif is_there:
            return
        # A run that has recorded nothing begins again: its tasks would read the linked text.
        for file in folder.glob(f"{ledger.name}*"):
            file.unlink()
    run, _ = create_or_open(folder, config, {ENDS_WITH_BASE: True})
    run.ledger.close()


def begin_row(folder: Path, config: RunConfig, shared: Path) -> None:
    """Begins a run from the one in `shared`, whose base model is trained.

    Raises:
      OtherBaseModel: it is not the row's.
      BadSetting, SettingsDisagree: a setting would have no effect.
    """
    check_settings(config, {})
    if base_digest(config) != folder_digest(shared):
        raise OtherBaseModel(folder=shared, row=folder)
    source, target = Layout(shared), Layout(folder)
    with reading(shared) as run, translate_os_errors(folder):
        make_folder(folder)
        for name in ("corpus", "objects", "snapshots"):
            link_folder(source.root / name, target.root / name)
        # The ledger last: the run exists when its ledger does.
        partial = target.ledger.with_name(f"{target.ledger.name}.partial")
        partial.unlink(missing_ok=True)
        changed = {"config": config.to_json(), "run": uuid.uuid4().hex, ENDS_WITH_BASE: "false"}
        run.ledger.fork(partial, changed)
        install_ledger(partial, target.ledger)


def folder_digest(shared: Path) -> str:
    """`base_digest` of the run in a folder."""
    with reading(shared) as run:
        return base_digest(run.requested_config)


def has_base_model(shared: Path) -> bool:
    """True if the run in a folder has trained its base model."""
    if not Layout(shared).ledger.exists():
        return False
    with reading(shared) as run:
        base = run.plan.base
        return bool(run.ledger.facts.modules_at(base.name, base.phases))


def digest_of(settings: dict[str, Any]) -> str:
    """A digest of settings, equal for equal ones."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return xxhash.xxh3_64_hexdigest(text.encode())
