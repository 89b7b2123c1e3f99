"""Settings of routing and of re-routing."""

import dataclasses
import math
from typing import Literal, get_args

from dipaco.errors import BadSetting

RoutingRule = Literal["features", "likelihood"]
RouterKind = Literal["kmeans", "product_kmeans", "random", "small_models"]
Normalisation = Literal["standardise", "l2", "standardise_l2", "none"]
FEATURES, LIKELIHOOD = RULES = get_args(RoutingRule)
*_, RANDOM, SMALL_MODELS = KINDS = get_args(RouterKind)
NORMALISATIONS = get_args(Normalisation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """The router that is fitted to the base model's features, and bounds on the size of shards."""

    kind: RouterKind = "kmeans"
    """What makes the shards (DiPaCo section 2.4): `kmeans` = a centre for each path;
    `product_kmeans` = a centre for each module; `random` = documents are dealt out, as many to each
    path, whatever the bounds say; `small_models` = a small language model for each path (SmallTalk
    LM)."""
    prefix_tokens: int = 32
    """Tokens at the head of a document or prompt that the router reads: its feature is their mean
    (DiPaCo section 2.4). The same number as `data.prefix_tokens`, which leaves them out of
    perplexity."""
    normalise: Normalisation = "standardise"
    """How features are put on a common footing: `standardise` = each to mean 0 and variance 1; `l2`
    = each document's to length 1; `standardise_l2` = both; `none` sends 4 in 5 documents to one
    path in small runs. Not stated in the paper."""
    capacity: float | None = 1.25
    """Most documents of a path, over the mean's; None = no bound, as published. It bounds first
    choices, not the further ones of `routing.overlap`: exactly for the router's own documents,
    unless many have equal features, and about right for others."""
    floor: float = 0.5
    """Least documents of a path, over the mean's; 0 = a path may get none, as published. As exact
    as `routing.capacity`."""
    overlap: int = 1
    """Paths that a document trains, the best ones (DiPaCo section 2.4); it is evaluated by the
    best."""
    alternations: tuple[int, ...] = ()
    """Phases before which documents are routed again, discriminatively (DiPaCo section 2.4),
    whatever `kind` made the first shards: every path is scored on the router's documents, the
    router is fitted to the best path of each, and all documents are routed by it. With the `rule`
    likelihood no router is fitted: paths are scored on the first tokens of all. `()` = never."""
    target_share: tuple[float, ...] | None = None
    """Share of the documents that the discriminative router gives each path (DiPaCo section 2.4);
    they sum to one. None = what the labels say, within `routing.floor` and `routing.capacity`."""
    rule: RoutingRule = "features"
    """Which path evaluates a document and continues a prompt: `features` = the best by the router
    (DiPaCo section 2.4); `likelihood` = the one under which its first tokens are likeliest
    (SmallTalk LM)."""
    shortlist: int | None = None
    """Paths that are compared by likelihood, the best by features; None = all, and so it is where
    `kind` is random: features say nothing then."""
    prior: float = 2.0
    """Nats that the first of them starts ahead; none where `kind` is random."""

    def num_compared(self, num_paths: int) -> int:
        """How many of P paths are compared by likelihood."""
        return num_paths if self.kind == RANDOM else self.shortlist or num_paths

    @property
    def prior_nats(self) -> float:
        """That the first path by features starts ahead."""
        return 0.0 if self.kind == RANDOM else self.prior

    def __post_init__(self):
        def expect(setting: str, is_good: bool, expected: str) -> None:
            if not is_good:
                raise BadSetting(
                    name=f"routing.{setting}", value=getattr(self, setting), expected=expected
                )

        expect("kind", self.kind in KINDS, f"one of {', '.join(KINDS)}")
        expect("rule", self.rule in RULES, f"one of {', '.join(RULES)}")
        expect(
            "shortlist",
            self.shortlist is None or self.shortlist >= 1,
            "None (all paths), or 1 path or more",
        )
        expect("prior", 0 <= self.prior < math.inf, "0 or more nats, and finite")
        expect("normalise", self.normalise in NORMALISATIONS, f"one of {', '.join(NORMALISATIONS)}")
        expect("prefix_tokens", self.prefix_tokens >= 1, "at least one token")
        expect("floor", 0 <= self.floor <= 1, "0 (no floor) to 1.0 (every path the same share)")
        expect(
            "capacity",
            self.capacity is None or 1 <= self.capacity < math.inf,
            "None (no bound) or at least 1.0, where 1.0 gives every path the same share",
        )
        expect("overlap", self.overlap >= 1, "at least 1 (no overlap)")
        expect(
            "alternations",
            list(self.alternations) == sorted(set(self.alternations))
            and all(phase >= 1 for phase in self.alternations),
            "phases in ascending order, each once, from 1: at 0 all paths are still the same",
        )
        share = self.target_share
        expect(
            "target_share",
            share is None or (abs(sum(share) - 1) <= 1e-6 and all(s > 0 for s in share)),
            "None, or a share above 0 for every path, that sum to one"
            + ("" if share is None else f": these sum to {sum(share):g}"),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerouteConfig:
    """Re-routing within a document, at test time. DiPaCo section 2.4 and Table 3."""

    every: tuple[int, ...] = ()
    """Tokens after which the path is chosen again; a row of the report for each number. In the
    paper 16, 32, 64 and 128 (DiPaCo section 2.4, Table 3). `()` = never."""
    window: int | None = None
    """Next tokens over which the router's target is the best path; None = to the document's end."""
    steps: int = 2000
    """Optimiser steps in which the base model is fine-tuned into a router (DiPaCo section 2.4)."""
    learning_rate: float = 1e-4
    """Peak learning rate of AdamW; not stated in the paper."""

    def __post_init__(self):
        def expect(setting: str, is_good: bool, expected: str) -> None:
            if not is_good:
                raise BadSetting(
                    name=f"reroute.{setting}",
                    value=getattr(self, setting),
                    expected=expected,
                )

        rises = list(self.every) == sorted(set(self.every))
        expect(
            "every",
            rises and all(tokens >= 1 for tokens in self.every),
            "numbers of tokens, 1 or more, in ascending order",
        )
        expect("window", self.window is None or self.window >= 1, "None, or 1 token or more")
        expect("steps", self.steps >= 1, "1 or more")
        expect("learning_rate", 0 < self.learning_rate < math.inf, "above 0, and finite")
