"""Names on disk. No other file knows them.

RUN/ledger.sqlite                    facts; or RUN/database, the server and schema that has them
RUN/ledger.sqlite-host               the machine that uses that file
RUN/run.lock                         held (shared) by the processes that work on the run
RUN/logs/WORKER.log                  output of workers that a launcher started
RUN/corpus/                          tokens, tokenizer, document index
RUN/objects/modules/DIGEST.safetensors       likewise states, messages, routers, scores, shards
RUN/snapshots/ARM/PATH/PHASE-ATTEMPT/        Orbax
RUN/swarm/WORKER.key                 the network identity of a backbone
RUN/report.{json,md,png}  RUN/inspect.png  RUN/events.jsonl  RUN/tensorboard/  RUN/wandb/

A run in a bucket has `database`, `corpus`, `objects`, `snapshots` and `report.*` there, by the same
names. Corpus files have their digests in their names there, as objects do: no file that the run
reads ever changes. The bucket also has `tokens/DIGEST/`, the tokens of one shard.

SWEEP/rows/NAME/SEED/                a run, as above
SWEEP/shared/DIGEST/                 a run up to its base model, which rows start from
SWEEP/replaced/NAME-SEED-N/          a run that `--redo` has moved away
SWEEP/sweep.json  SWEEP/table.{md,json}  SWEEP/plot.png
"""

import dataclasses
import itertools
from pathlib import Path

from dipaco.receipt import Receipt


class _At:
    """A place of this name in the folder of a layout."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, layout: "Layout | SweepLayout", _: object) -> Path:
        return layout.root / self._name


@dataclasses.dataclass(frozen=True)
class Layout:
    """Paths of one run's files."""

    root: Path

    ledger = _At("ledger.sqlite")
    database = _At("database")  # The facts are on a server: which, and in what schema (JSON).
    lock = _At("run.lock")
    corpus_lock = _At("corpus.lock")
    corpus = _At("corpus")
    preparing = _At("preparing")  # The corpus of a run in a bucket is here before its upload.
    slices = _At("slices")  # Slices of the text become tokens here before they are stored.
    events = _At("events.jsonl")
    inspection = _At("inspect.png")
    tensorboard = _At("tensorboard")

    def log(self, worker: str) -> Path:
        return self.root / "logs" / f"{worker}.log"

    @property
    def fetched(self) -> tuple[Path, ...]:
        """Folders that can be fetched again if the run is in a bucket."""
        return tuple(self.root / name for name in ("corpus", "objects", "snapshots", "tokens"))

    @property
    def folders(self) -> frozenset[str]:
        """The names of all folders that a run, or its file system, may make here."""
        own = {"logs", "preparing", "slices", "partial", "turns", "tensorboard"}
        own |= {"wandb", "swarm", *(each.name for each in self.fetched)}
        return frozenset(own | {"lost+found"})

    def report(self, suffix: str) -> Path:
        return self.root / f"report.{suffix}"

    def snapshot(
        self, arm: str, path: int, phase: int, attempt: int, step: int | None = None
    ) -> str:
        """Name of a path snapshot. It holds the attempt, since a folder's digest is not known
        before it is written, and the step of a partial snapshot, as an attempt may save several.
        """
        of_step = "" if step is None else f"-{step}"
        return f"snapshots/{arm}/{path:04d}/{phase:06d}-{attempt}{of_step}"


@dataclasses.dataclass(frozen=True)
class SweepLayout:
    """Paths of one sweep's files."""

    root: Path

    sweep = _At("sweep.json")  # It names the sweep that this folder belongs to.
    lock = _At("sweep.lock")
    plot = _At("plot.png")

    def row(self, name: str, seed: int) -> Path:
        return self.root / "rows" / name / str(seed)

    def runs(self) -> list[Path]:
        """Folders of runs that have been begun, the rows' first, then replaced ones."""
        ledger = Layout(self.root).ledger.name
        kinds = (sorted(self.root.glob(f"{kind}/{ledger}")) for kind in ("rows/*/*", "replaced/*"))
        return [file.parent for files in kinds for file in files]

    def seeds(self) -> list[int]:
        """Seeds under which rows have been begun."""
        folders = (self.root / "rows").glob("*/*")
        return sorted({int(folder.name) for folder in folders if folder.name.isdecimal()})

    def shared(self, digest: str) -> Path:
        return self.root / "shared" / digest

    def bases(self) -> list[Path]:
        """Folders of the runs that train base models, if they have been begun."""
        return sorted((self.root / "shared").glob("*"))

    def replaced(self, name: str, seed: int) -> Path:
        """A new folder for a run that is moved away."""
        numbers = itertools.count(1)
        return next(
            folder
            for number in numbers
            if not (folder := self.root / "replaced" / f"{name}-{seed}-{number}").exists()
        )

    def table(self, suffix: str) -> Path:
        return self.root / f"table.{suffix}"


def remote_name(receipt: Receipt) -> str:
    """An object's name in a bucket: with its digest or, in a snapshot, the attempt in it."""
    name, digest, _ = receipt
    if digest in name or is_folder(name):
        return name
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{digest}{dot}{suffix}"


# Folders of objects that finished runs can do without.
MODULES, OUTER_STATES = "objects/modules", "objects/states"
CONTRIBUTIONS, SNAPSHOTS, SHARD_TOKENS = "objects/messages", "snapshots", "tokens"

# Kinds of files, as people are told of them.
KINDS = (
    *("modules", "outer_states", "snapshots", "contributions"),
    *("routing", "scores", "text", "ledger", "other"),
)
_KIND_OF_OBJECT = {
    "modules": "modules",
    "states": "outer_states",
    "messages": "contributions",
    "routers": "routing",
    "shards": "routing",
    "features": "routing",
    "scores": "scores",
    "corpora": "text",
    "tokenizers": "text",
}

# First part of an object's name -> how many parts a name has at least.
_LEAST_PARTS = {"objects": 3, "snapshots": 4, "tokens": 2, "corpus": 2}


def is_object(name: str) -> bool:
    """True if this can be the name of an object: of one of these folders, and within it. Names come
    from rows of a ledger and from lists of files, which another program may have written.
    """
    first, *rest = parts = name.split("/")
    is_within = all(part not in ("", ".", "..") and "\0" not in part for part in rest)
    return is_within and len(parts) >= _LEAST_PARTS.get(first, len(parts) + 1)


def is_folder(name: str) -> bool:
    """True if an object is a folder, or a file in one."""
    return name.startswith((f"{SNAPSHOTS}/", f"{SHARD_TOKENS}/"))


PIECE = ".piece"  # Between the name of a large object in a bucket and the number of a piece.


def piece_name(name: str, number: int) -> str:
    """Name in a bucket of a piece of a large object. The first has the object's own."""
    return f"{name}{PIECE}{number:05d}" if number else name


def object_of(name: str) -> str:
    """The object that a file, or a piece of one, belongs to: itself, or the folder that is one."""
    if not is_folder(name):
        return name.partition(PIECE)[0]
    parts = name.split("/")
    return "/".join(parts[: _LEAST_PARTS[parts[0]]])


def kind_of(name: str) -> str:
    """The kind of a file of a run, one of `KINDS`."""
    first, *rest = name.split("/")
    if first in ("corpus", "preparing", "slices", SHARD_TOKENS):
        return "text"
    if first == SNAPSHOTS:
        return "snapshots"
    if first.startswith("ledger.sqlite"):
        return "ledger"
    if first != "objects" or not rest:
        return "other"
    return _KIND_OF_OBJECT.get(rest[0], "other")


def shard_tokens_folder(digest: str) -> str:
    """Name of the folder of shard tokens."""
    return f"{SHARD_TOKENS}/{digest}"
