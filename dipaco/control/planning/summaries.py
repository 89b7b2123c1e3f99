"""Summaries of finished stages, as records: the `summary` of their facts.

The ledger holds a summary as a JSON object, which `status` shows as it is. A value that a run does
not have is left out.
"""

from typing import Any, Self

import msgspec

from dipaco.control.planning.tasks import StageDone


class Summary(msgspec.Struct, frozen=True):
    """A record that is read from a fact and written as its JSON object."""

    @classmethod
    def of(cls, stage: StageDone) -> Self:
        return msgspec.convert(stage.summary, cls)

    def as_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


class Prepared(Summary, frozen=True, kw_only=True):
    """Summary of `prepare`: the corpus."""

    documents: dict[str, int]  # split -> documents
    tokens: int
    num_bytes: int = msgspec.field(name="bytes")
    domains: dict[str, int]  # domain -> documents
    left_out: dict[str, str]  # domain -> why it is missing
    examples: list[str] = []  # prompts from its text
    notes: list[str]


class Routed(Summary, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of `route`: the shards of all paths, in order."""

    documents: list[int]
    domains: list[dict[str, int]] = []  # domain -> documents
    test: list[int]  # test documents
    test_bytes: int  # of their text, the part that is predicted
    small_models_seconds: float | None = None  # Time to fit the small models that route.
    outside_bounds: str = ""  # A sentence that names the shards outside their bounds.


class Alternated(Routed, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of `route` before a later phase: also the changes."""

    labels: list[int]  # documents of the router that are best under each path
    before_calibration: list[int]  # Number of these documents that each path gets.
    after_calibration: list[int]
    agreement: float  # share of them that the router before sends to their best path
    agreement_after: float  # this one
    moved: float  # share of the training documents that have changed their path


class ReroutedEvery(msgspec.Struct, frozen=True, kw_only=True):
    """The last release on the test documents, where a path is chosen so often."""

    every: int | None  # Tokens. None = once, by the document router.
    perplexity: float
    tune_perplexity: float  # of the tune documents
    switches: int  # changes of path within documents
    tokens_read_again: int  # Tokens that paths read again as they took over.
    tokens: int  # predicted


class Rerouted(Summary, frozen=True, kw_only=True):
    """Summary of `reroute`: the router within documents, and its benefit."""

    rows: list[ReroutedEvery]
    release: int  # phase of the release that it is of
    step: int = 0  # after which the router was kept
    hold_out_loss: float | None = None  # Then. None = it was not measured.
