"""Settings of routing and of re-routing."""

import dataclasses
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Le

from dipaco.errors import BadSetting
from dipaco.settings import Count, NotNegative, Positive, check_values

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
    """Maker of the shards (DiPaCo section 2.4): `kmeans` = a centre for each path, `product_kmeans`
    = a centre for each module, `random` = each path gets as many documents, drawn at random,
    whatever the bounds say, `small_models` = a small language model for each path (SmallTalk
    LM)."""
    normalise: Normalisation = "standardise"
    """Normalisation of features: `standardise` = each feature to mean 0 and variance 1, `l2` = each
    document's vector to length 1, `standardise_l2` = both, `none` = neither, which sends 4 in 5
    documents to one path in small runs. Not stated in the paper."""
    capacity: Annotated[float, Ge(1)] | None = 1.25
    """Most documents of a path, as a multiple of the mean. None = no bound, as published. It bounds
    first choices, not the further ones of `routing.overlap`: exactly for the documents that the
    router is fitted on, unless many have equal features, and approximately for others."""
    floor: Annotated[float, Ge(0), Le(1)] = 0.5
    """Least documents of a path, as a share of the mean. 0 = a path may get none, as published. It
    is as exact as `routing.capacity`."""
    overlap: Count = 1
    """Paths that a document trains, the best ones (DiPaCo section 2.4). The best path evaluates
    it."""
    alternations: tuple[int, ...] = ()
    """Numbers of phases after which documents are routed again, discriminatively (DiPaCo section
    2.4), whatever `kind` made the first shards: every path is scored on the router's documents,
    the router is fitted to the best path of each, and all documents are routed by it. With the
    `rule` likelihood no router is fitted: paths are scored on the first tokens of all. `()` =
    never."""
    target_share: tuple[float, ...] | None = None
    """Share of the documents that the discriminative router gives each path (DiPaCo section 2.4).
    The shares sum to one. None = the labels' shares, within `routing.floor` and
    `routing.capacity`."""
    rule: RoutingRule = "features"
    """Path that evaluates a document and continues a prompt: `features` = the best by the router
    (DiPaCo section 2.4), `likelihood` = the path under which its first tokens are likeliest
    (SmallTalk LM)."""
    shortlist: Count | None = None
    """Paths that are compared by likelihood, the best by features. None = all. With `kind` random
    all are compared, since features say nothing then."""
    prior: NotNegative = 2.0
    """Nats by which the first of these paths starts ahead. With `kind` random none does."""

    def num_compared(self, num_paths: int) -> int:
        """Number of paths, of `num_paths`, that are compared by likelihood."""
        return num_paths if self.kind == RANDOM else self.shortlist or num_paths

    @property
    def prior_nats(self) -> float:
        """Nats by which the first path by features starts ahead."""
        return 0.0 if self.kind == RANDOM else self.prior

    def __post_init__(self):
        check_values(self, "routing")
        phases, share = self.alternations, self.target_share
        if list(phases) != sorted(set(phases)) or any(phase < 1 for phase in phases):
            expected = (
                "phases in ascending order, each once, from 1: at 0 all paths are still the same"
            )
            raise BadSetting(name="routing.alternations", value=phases, expected=expected)
        if share is not None and (abs(sum(share) - 1) > 1e-6 or any(each <= 0 for each in share)):
            expected = (
                "None, or a share above 0 for every path, that sum to one: these sum to "
                f"{sum(share):g}"
            )
            raise BadSetting(name="routing.target_share", value=share, expected=expected)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerouteConfig:
    """Re-routing within a document, at test time. DiPaCo section 2.4 and Table 3."""

    every: tuple[int, ...] = ()
    """Tokens after which the path is chosen again; a row of the report for each number. In the
    paper 16, 32, 64 and 128 (DiPaCo section 2.4, Table 3). `()` = never."""
    window: Count | None = None
    """Next tokens over which the router's target is the best path; None = to the document's end."""
    steps: Count = 2000
    """Optimiser steps in which the base model is fine-tuned into a router (DiPaCo section 2.4)."""
    learning_rate: Positive = 1e-4
    """Peak learning rate of AdamW; not stated in the paper."""

    def __post_init__(self):
        check_values(self, "reroute")
        if list(self.every) != sorted(set(self.every)) or any(tokens < 1 for tokens in self.every):
            expected = "numbers of tokens, 1 or more, in ascending order"
            raise BadSetting(name="reroute.every", value=self.every, expected=expected)
