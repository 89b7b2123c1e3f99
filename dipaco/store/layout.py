"""Names on disk: the only file that knows them.

RUN/ledger.sqlite                    facts; or RUN/database, which says on what server they are
RUN/run.lock                         shared by the processes that work on the run
RUN/logs/WORKER.log                  what workers that were started for it print
RUN/corpus/                          tokens, tokenizer, document index
RUN/objects/modules/DIGEST.safetensors       likewise states, messages, routers, scores, shards
RUN/snapshots/ARM/PATH/PHASE-ATTEMPT/        Orbax
RUN/report.{json,md,png}  RUN/events.jsonl  RUN/tensorboard/
"""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where everything of one run lies."""

    root: Path

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def corpus_lock(self) -> Path:
        return self.root / "corpus.lock"

    def log(self, worker: str) -> Path:
        return self.root / "logs" / f"{worker}.log"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    def report(self, suffix: str) -> Path:
        return self.root / f"report.{suffix}"

    def snapshot(self, arm: str, path: int, phase: int, attempt: int) -> str:
        """Name of a path snapshot: the attempt is in it, since a folder cannot be named by its
        digest before it is written.
        """
        return f"snapshots/{arm}/{path:04d}/{phase:06d}-{attempt}"
