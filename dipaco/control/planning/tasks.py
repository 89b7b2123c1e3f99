"""The nouns of the ledger: tasks, claims, and the facts that a task records. Frozen values."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from dipaco.receipt import Receipt
from dipaco.topology import ModuleId

Kind = Literal[
    "prepare",
    "pretrain",
    "route",
    "train",
    "outer",
    "label",
    "check",
    "score",
    "evaluate",
    "sample",
    "reroute",
    "report",
]

LARGEST_FLOAT32 = 3.4028234663852886e38

# Tasks nearer to a result go first: a ready module or score unblocks others.
PRIORITY: dict[Kind, int] = {
    "prepare": 0,
    "pretrain": 1,
    "route": 2,
    "outer": 3,
    "label": 4,
    "check": 5,
    "score": 6,
    "evaluate": 7,
    "sample": 8,  # before further training: texts are read while it goes on
    "train": 9,
    "reroute": 10,
    "report": 11,
}
OF_A_PATH: tuple[Kind, ...] = ("train", "label", "check", "score")

SLICED: tuple[Kind, ...] = ("prepare", "route")  # stages that many tasks share

FIRST_KINDS: tuple[Kind, ...] = ("prepare", "pretrain")  # the same for all runs of one base model


class Task(NamedTuple):
    """One unit of work. Two tasks with equal fields are the same task.

    Where many tasks share a stage, each does a slice of one step of it: `arm` is the step, and
    `subject` the slice's number.
    """

    kind: Kind
    arm: str = ""
    subject: str = ""  # a path's number or a module's id, as text
    phase: int = 0

    @property
    def path(self) -> int:
        return int(self.subject or 0)

    @property
    def module(self) -> ModuleId:
        return ModuleId.parse(self.subject)

    @property
    def step(self) -> str:
        """The step of a sliced stage that it does a slice of. Empty = the whole stage."""
        return self.arm if self.kind in SLICED else ""

    @property
    def slice(self) -> int:
        """Its slice of that step."""
        return int(self.subject)

    def __str__(self) -> str:
        if self.step:
            return f"{self.kind} {self.step} slice {self.slice}"
        about = "path " if self.kind in OF_A_PATH else "module " if self.kind == "outer" else ""
        what = f" {self.arm} {about}{self.subject}".rstrip() if self.arm else ""
        return f"{self.kind}{what} phase {self.phase}" if self.arm or self.phase else self.kind


class Claim(NamedTuple):
    """A worker's hold on a task."""

    task: Task
    task_id: int
    attempt: int  # fencing token: a later claim of the same task has a higher one
    worker: str  # The worker that claimed it.
    since: float = 0.0  # seconds of `clock.now_seconds` of the process that claimed it


class GradientStats(NamedTuple):
    """The outer gradients of a module in a phase: their norms, and how much they agree."""

    norms: dict[int, float]  # path -> norm of its outer gradient
    cosine: float | None  # Mean over pairs of paths. None if a single path goes through.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleReady:
    """A module at the start of `phase`: parameters, and the state of its outer optimiser (None:
    has not stepped).
    """

    arm: str
    module: ModuleId
    phase: int
    parameters: Receipt
    outer_state: Receipt | None = None
    gradient_norm: float | None = None  # Norm of the mean outer gradient that made it.
    gradient_stats: GradientStats | None = None  # Statistics of the paths in that mean.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contribution:
    """The contribution of one path to one module after `phase`."""

    arm: str
    path: int
    module: ModuleId
    phase: int
    base_digest: str  # Digest of the parameters that the path started from.
    message: Receipt


class GradientNorms(NamedTuple):
    """Norms of a path's gradients in the inner steps of a phase, before clipping."""

    mean: float
    largest: float

    @classmethod
    def over(cls, norms: Sequence[float]) -> "GradientNorms | None":
        """The norms of single steps, together. None without any. A norm that is not finite counts
        as the largest float32.
        """
        finite = [norm if math.isfinite(norm) else LARGEST_FLOAT32 for norm in norms]
        return cls(statistics.fmean(finite), max(finite)) if finite else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathTrained:
    """A path went through `phase`: where its snapshot is, and how it went."""

    arm: str
    path: int
    phase: int
    snapshot: Receipt  # digest of the restored tree, not of the files
    step: int  # Counted in the arm's schedule, after this phase.
    position: int  # Batches taken of this data. The path may have trained on other data before.
    batches: str  # fingerprint of the data that the position counts in
    losses: tuple[float, ...]  # per inner step
    norms: GradientNorms | None = None  # None: no step, or volunteers took them
    tokens: int
    seconds: float
    bytes_down: int  # Modules that a path alone on a machine fetches before the phase.
    bytes_up: int  # contributions that it sends after the phase
    machine: str  # Its bits depend on this: kind and number of devices, CPUs, compiler.


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageDone:
    """`prepare`, `route`, `reroute` or `report` is done: its results, by name.

    `route` is done again at the phase of each alternation. Earlier results stay.
    """

    stage: Kind
    phase: int = 0
    artifacts: dict[str, Receipt]
    summary: dict[str, Any]  # JSON: what `status` shows
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceDone:
    """A task has done its slice of one step of a stage."""

    stage: Kind
    step: str  # `read`, `merge` or `tokenise` of `prepare`, `features` of `route`
    slice: int
    artifacts: dict[str, Receipt]
    summary: dict[str, Any]  # JSON
    seconds: float

    @property
    def task(self) -> Task:
        """The task that did it."""
        return Task(self.stage, self.step, str(self.slice))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathLabelled:
    """Log-likelihoods of the router's documents under a path as it is at the start of `phase`."""

    arm: str
    path: int
    phase: int
    scores: Receipt
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathChecked:
    """The loss of a path, at the start of `phase`, on the documents that its shard holds out."""

    arm: str
    path: int
    phase: int
    loss: float  # mean nats per token
    best_phase: int  # Phase of the lowest loss since the path has had this shard. It stops there.
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathScored:
    """Log-likelihoods of documents under one path."""

    arm: str
    path: int
    phase: int
    scores: Receipt
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A release was evaluated."""

    arm: str
    phase: int
    perplexity: float  # routed once per document
    best_path_perplexity: float | None  # each document under its best path
    # Perplexity of the arm's other rows in the report, by the ends of their names, and that of a
    # wrong path.
    other_rows: dict[str, float] = dataclasses.field(default_factory=dict)
    # The same for tune documents, best path included. The arm's own row has an empty name.
    tune_rows: dict[str, float] = dataclasses.field(default_factory=dict)
    documents: int  # of test
    tokens: int
    seconds: float


class Sample(NamedTuple):
    """A prompt, continued by the path of a release that it was routed to."""

    domain: str
    document: int  # A test document. Its first tokens are the prompt.
    path: int
    prompt: str
    text: str  # without the prompt
    num_tokens: int  # Length of the text.
    has_ended: bool  # the text ended by itself; else it was cut there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """A release continued the run's prompts, always the same ones in the same order."""

    arm: str
    phase: int
    samples: tuple[Sample, ...]


Fact = (
    ModuleReady
    | Contribution
    | PathTrained
    | StageDone
    | SliceDone
    | PathLabelled
    | PathChecked
    | PathScored
    | Evaluated
    | Sampled
)
