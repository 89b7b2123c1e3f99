"""What a finished stage says of what it made, as records: the `summary` of its fact.

In the ledger a summary is a JSON object, which `status` shows as it is. What a run has nothing to
say about is left out of it, and what an older version did not say yet is missing there.
"""

from typing import Any, Self

import msgspec

from dipaco.control.planning.tasks import StageDone


class Summary(msgspec.Struct, frozen=True):
    """What all of them share: from a fact, and to the JSON object of one."""

    @classmethod
    def of(cls, stage: StageDone) -> Self:
        return msgspec.convert(stage.summary, cls)

    def as_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


class Prepared(Summary, frozen=True, kw_only=True):
    """Of `prepare`: the corpus."""

    documents: dict[str, int]  # split -> documents
    tokens: int
    num_bytes: int = msgspec.field(name="bytes")
    domains: dict[str, int]  # domain -> documents
    left_out: dict[str, str]  # domain -> why it is missing
    examples: list[str] = []  # prompts from its text
    notes: list[str]


class Routed(Summary, frozen=True, kw_only=True, omit_defaults=True):
    """Of `route`: the shards of all paths, in order."""

    documents: list[int]
    domains: list[dict[str, int]] = []  # domain -> documents
    valid: list[int]  # validation documents
    small_models_seconds: float | None = None  # of fitting the small models that route
    outside_bounds: str = ""  # which shards are outside their bounds, in a sentence


class Alternated(Routed, frozen=True, kw_only=True, omit_defaults=True):
    """Of `route` before a later phase: also what that changed."""

    labels: list[int]  # documents of the router that are best under each path
    before_calibration: list[int]  # of these documents, how many each path gets
    after_calibration: list[int]
    agreement: float  # share of them that the router before sends to their best path
    agreement_after: float  # this one
    moved: float  # share of the training documents that have changed their path


class ReroutedEvery(msgspec.Struct, frozen=True, kw_only=True):
    """The last release on the validation documents, where a path is chosen so often."""

    every: int | None  # tokens; None = once, by the document router
    perplexity: float
    switches: int  # changes of path within documents
    tokens_read_again: int  # by the paths that took over
    tokens: int  # predicted


class Rerouted(Summary, frozen=True, kw_only=True):
    """Of `reroute`: the router within documents, and what it brings."""

    rows: list[ReroutedEvery]
    release: int  # phase of the release that it is of
    step: int = 0  # after which the router was kept
    hold_out_loss: float | None = None  # then; None = it was not measured
