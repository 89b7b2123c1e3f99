"""How documents are routed: the settings, and which values they take."""

import dataclasses
import math

from dipaco.errors import BadSetting

KINDS = ("kmeans", "product_kmeans")
NORMALISATIONS = ("standardise", "l2", "standardise_l2", "none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """Which router is fitted to the base model's features, and how crowded a path may get."""

    kind: str = "kmeans"  # "kmeans": a centre a path; "product_kmeans": a centre a module
    prefix_tokens: int = 32  # tokens a feature is the mean over; DiPaCo 2.4
    normalise: str = "standardise"  # raw features send 4 in 5 documents down one path in small runs
    # Bounds on the documents of a path, over the mean's. They hold for the router's own documents;
    # others come near them.
    capacity: float | None = 1.25  # at most; None = no bound
    floor: float = 0.5  # at least; 0 = a path may starve
    restarts: int = 4  # seedings tried; the lowest objective is kept
    iterations: int = 50  # rounds of assign and move at most, each restart
    interleave_pca: bool = True  # deal principal axes out to the parts of a product in turn
    overlap: int = 1  # a document trains its n best paths, and is evaluated by one; DiPaCo 2.4
    # Discriminative routing, DiPaCo 2.4: after so many phases each, all paths are scored on the
    # router's documents, the router is fitted again to which of them is best, and every document
    # goes where it says. `()` = never.
    alternations: tuple[int, ...] = ()
    # What share of the documents each path should get of that router; sums to one. None = what the
    # labels say, within `floor` and `capacity`.
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
            "phases in rising order, each once, from 1: at 0 all paths are still the same",
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
    """Re-routing while a document is read, at test time. DiPaCo section 2.4 and Table 3."""

    # After how many tokens each the path is chosen anew; a row of the report for each number. The
    # paper's are 16, 32, 64 and 128. `()` = never.
    every: tuple[int, ...] = ()
    # A target is the path that is best over so many tokens to come; None = to the document's end.
    window: int | None = None
    steps: int = 2000  # of fine-tuning the base model into a router; DiPaCo section 2.4
    batch_size: int = 64  # documents a step
    learning_rate: float = 1e-4  # peak; not stated in the paper
    # This share of the router's documents does not train it; it is kept as it was when it did best
    # on them. A few hundred documents are soon known by heart. 0 = the router of the last step.
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
            "numbers of tokens, 1 or more, in rising order",
        )
        expect("window", self.window is None or self.window >= 1, "None, or 1 token or more")
        expect("steps", self.steps >= 1, "1 or more")
        expect("batch_size", self.batch_size >= 1, "1 or more")
        expect("learning_rate", 0 < self.learning_rate < math.inf, "above 0, and finite")
        expect("hold_out", 0 <= self.hold_out < 1, "0 or more, and below 1")
