"""Settings of routing and of re-routing."""

import dataclasses
import math

from dipaco.errors import BadSetting

KINDS = ("kmeans", "product_kmeans")
NORMALISATIONS = ("standardise", "l2", "standardise_l2", "none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """The router that is fitted to the base model's features, and bounds on the size of shards."""

    kind: str = "kmeans"  # "kmeans": one centre per path; "product_kmeans": one per module
    prefix_tokens: int = 32  # a feature is the mean over these; DiPaCo 2.4
    normalise: str = "standardise"  # "none" sends 4 in 5 documents to one path in small runs
    # Bounds on the documents of a path, as multiples of the mean. Exact for the router's own
    # documents, about right for others.
    capacity: float | None = 1.25  # at most; None = no bound
    floor: float = 0.5  # at least; 0 = a path may get none
    restarts: int = 4  # seedings of k-means; the lowest objective is kept
    iterations: int = 50  # at most, of each restart
    interleave_pca: bool = True  # give each part of a product every n-th principal axis
    overlap: int = 1  # a document trains its n best paths; it is evaluated by the best; DiPaCo 2.4
    # Discriminative routing, DiPaCo 2.4: at the start of these phases every path is scored on the
    # router's documents, the router is fitted to the best path of each, and all documents are
    # routed by it. `()` = never.
    alternations: tuple[int, ...] = ()
    # The share of the documents that the discriminative router gives each path; sums to one.
    # None = the share of the labels, within `floor` and `capacity`.
    target_share: tuple[float, ...] | None = None
    regularisation: float = 1e-2  # L2 on the weights of its logistic regression

    def __post_init__(self):
        def expect(setting: str, is_good: bool, expected: str) -> None:
            if not is_good:
                raise BadSetting(
                    name=f"routing.{setting}", value=getattr(self, setting), expected=expected
                )

        expect("kind", self.kind in KINDS, f"one of {', '.join(KINDS)}")
        expect("normalise", self.normalise in NORMALISATIONS, f"one of {', '.join(NORMALISATIONS)}")
        expect("prefix_tokens", self.prefix_tokens >= 1, "at least one token")
        expect("restarts", self.restarts >= 1, "at least 1")
        expect("iterations", self.iterations >= 1, "at least 1")
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
        expect("regularisation", 0 <= self.regularisation < math.inf, "0 or more, and finite")
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

    # The path is chosen again every so many tokens; one row of the report for each number. In the
    # paper: 16, 32, 64 and 128. `()` = never.
    every: tuple[int, ...] = ()
    # The target is the best path over this many next tokens; None = to the document's end.
    window: int | None = None
    steps: int = 2000  # of fine-tuning the base model into a router; DiPaCo section 2.4
    batch_size: int = 64  # documents a step
    learning_rate: float = 1e-4  # peak; not stated in the paper
    # This share of the router's documents is held out; the router with the lowest loss on it is
    # kept, since a few hundred documents are soon over-fitted. 0 = keep the last router.
    hold_out: float = 0.1

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
        expect("batch_size", self.batch_size >= 1, "1 or more")
        expect("learning_rate", 0 < self.learning_rate < math.inf, "above 0, and finite")
        expect("hold_out", 0 <= self.hold_out < 1, "0 or more, and below 1")
