"""What the text is, how it is split, and how long a row is."""

import dataclasses
import hashlib
import os
from pathlib import Path

from dipaco.errors import BadSetting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where documents come from, and how they are split, tokenised and packed."""

    sources: tuple[str, ...] = ("packages:",)  # read in this order; see `dipaco/data/sources.py`
    tokenizer: str | None = None  # a tokenizer.json; None = train one on the train split
    vocab_size: int = 2048  # of the tokenizer to train; a given one must fit into it
    tokenizer_sample_bytes: int = 4_000_000  # text the tokenizer is trained on; more gains little
    length: int = 128  # tokens in a training row; also the tokens of a document that are scored
    valid_fraction: float = 0.05  # of the groups; large enough for a corpus of a few megabytes
    router_fraction: float = 0.05  # DiPaCo: 0.005 of C4; a small corpus needs 50 documents a path
    prefix_tokens: int = 32  # the router reads these; only longer documents are evaluated
    max_bytes_per_domain: int | None = 1_500_000  # the rest is not read; None = all
    max_document_bytes: int = 8192  # longer documents become several of the same group
    processes: int = 0  # that tokenise; 0 = one for each CPU; the result does not depend on it

    def __post_init__(self):
        def demand(holds: bool, name: str, expected: str) -> None:
            if not holds:
                raise BadSetting(name=f"data.{name}", value=getattr(self, name), expected=expected)

        demand(len(self.sources) > 0, "sources", "at least one source")
        demand(self.vocab_size >= 257, "vocab_size", "257 or more: 256 bytes and one reserved id")
        demand(self.length >= 2, "length", "at least two tokens a row")
        demand(self.prefix_tokens >= 1, "prefix_tokens", "at least 1")
        demand(0 < self.valid_fraction < 1, "valid_fraction", "between 0 and 1")
        demand(0 < self.router_fraction < 1, "router_fraction", "between 0 and 1")
        demand(
            self.valid_fraction + self.router_fraction < 1,
            "router_fraction",
            "below 1 together with `data.valid_fraction`, to leave documents to train on",
        )
        demand(self.max_document_bytes >= 64, "max_document_bytes", "at least 64")
        demand(self.processes >= 0, "processes", "0 or more")
        demand(
            self.max_bytes_per_domain is None or self.max_bytes_per_domain > 0,
            "max_bytes_per_domain",
            "more than 0, or None for no limit",
        )
        demand(self.tokenizer_sample_bytes > 0, "tokenizer_sample_bytes", "more than 0")


NOT_OF_THE_CORPUS = ("length", "processes")  # settings that do not change the prepared bytes


def corpus_settings(config: DataConfig) -> dict[str, object]:
    """The settings that the bytes of a prepared corpus depend on, as JSON values."""
    settings = dataclasses.asdict(config) | {"sources": list(config.sources)}
    if config.tokenizer is not None and Path(config.tokenizer).is_file():
        # By content, not by path.
        content = Path(config.tokenizer).read_bytes()
        settings["tokenizer"] = hashlib.sha256(content).hexdigest()[:32]
    return {name: value for name, value in settings.items() if name not in NOT_OF_THE_CORPUS}


def num_processes(config: DataConfig) -> int:
    """How many processes tokenise: as set, or one for each CPU that this process may use."""
    if config.processes:
        return config.processes
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
