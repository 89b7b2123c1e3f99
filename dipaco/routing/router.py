"""The router: a value that ranks the paths of a document.

Scores are negative distances to centres (k-means) or linear (a classifier, fitted in
`discriminative`), minus a price per path. They may also be drawn at random (`drawn`), or come from
a user's rule (`own_router`).

The contract of every router (`tests/routing/test_router.py`): Scores are higher for better paths. A
document is assigned alone as it is among others. The version is a digest of the values, so equal
versions mean equal answers. `load(save(router))` is that router, and changed bytes are refused.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from dipaco.errors import BadSetting
from dipaco.routing.blocks import in_blocks
from dipaco.routing.config import RANDOM, SMALL_MODELS, RoutingConfig
from dipaco.routing.drawn import drawn_costs
from dipaco.routing.errors import BadFeatures, DamagedRouter, TooFewRouterDocuments
from dipaco.routing.normalise import Normaliser, fit_normaliser
from dipaco.routing.own_router import OwnCosts, RouterFunctions, fit_own
from dipaco.routing.product import Centres, fit_centres, nearest_paths, path_costs

OWN = "own"
OWN_VALUES = "own."  # begins the names of its values in a file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Router:
    """Nearest centre under prices: score of a path = -(squared distance + price). With weights,
    likeliest class: score of a path = features @ weights - price, where -price is its bias. With a
    seed: any path, drawn by the features' bytes. With `own`: as that says.
    """

    kind: str  # a kind of RoutingConfig, or "discriminative", or "own"
    normaliser: Normaliser
    centres: Centres  # float32 [K, D of the part] for each part of the vector. () with weights
    price_P: np.ndarray  # float64. Zeros if there was no capacity bound
    weight_DP: np.ndarray | None = None  # float32
    seed: int | None = None  # 64 bits
    own: OwnCosts | None = None

    @property
    def num_paths(self) -> int:
        return len(self.price_P)

    @property
    def num_dims(self) -> int:
        """D of the raw features that it takes."""
        return len(self.normaliser.mean_D)

    @functools.cached_property
    def version(self) -> str:
        """32 hexadecimal digits, of the values only."""
        digest = xxhash.xxh3_128(self.kind.encode())
        for name, values in sorted(_tensors(self).items()):
            digest.update(f"{name} {values.dtype.str} {values.shape};".encode() + values.tobytes())
        return digest.hexdigest()

    @property
    def score_meaning(self) -> str:
        """The meaning of a score, in words."""
        if self.seed is not None:
            return "drawn at random from the text"
        if self.own is not None:
            return "minus what a path costs, by this run's own router"
        if self.kind == SMALL_MODELS:
            return "the log-likelihood of the text under a path's small model, in nats"
        if self.weight_DP is not None:
            return "the logit of a path, by a classifier that learned which path predicts best"
        distance = "minus the squared distance to a path's centre"
        return f"{distance}, and the path's price" if self.price_P.any() else distance

    def scores(self, features_ND: np.ndarray) -> np.ndarray:
        """Raw features [N, D] -> float32 [N, P], higher is better."""
        return (-self.costs(features_ND)).astype(np.float32)

    def assign(self, features_ND: np.ndarray, num_choices: int = 1) -> np.ndarray:
        """The best paths of each document: raw [N, D] -> int32 [N, num_choices], best first.

        Raises:
          BadSetting: more choices than paths.
          BadFeatures: another number of dimensions than it was fitted on, or values that are not
            finite.
        """
        if not 1 <= num_choices <= self.num_paths:
            raise BadSetting(
                name="routing.num_choices",
                value=num_choices,
                expected=f"1 to {self.num_paths} paths",
            )
        # Costs are float64. Ties go to the first path.
        if num_choices == 1 and self.centres and not self.price_P.any():
            check_features(features_ND, self.num_dims)
            path_N = nearest_paths(self.normaliser.apply(features_ND), self.centres)
            return path_N[:, None].astype(np.int32)
        cost_NP = self.costs(features_ND)
        if num_choices == 1:
            return cost_NP.argmin(axis=1)[:, None].astype(np.int32)
        order_NP = np.argsort(cost_NP, axis=1, kind="stable")
        return order_NP[:, :num_choices].astype(np.int32)

    def costs(self, features_ND: np.ndarray) -> np.ndarray:
        """Raw features [N, D] -> float64 [N, P], prices included. Lower is better."""
        check_features(features_ND, self.num_dims)
        if self.seed is not None:
            return drawn_costs(features_ND, self.num_paths, self.seed)
        if self.own is not None:
            return self.own.of(features_ND, self.num_paths)
        x_ND = self.normaliser.apply(features_ND)
        if self.weight_DP is None:
            return path_costs(x_ND, self.centres) + self.price_P
        weight_DP = self.weight_DP.astype(np.float64)
        return in_blocks(lambda x_BD: -(x_BD @ weight_DP), x_ND) + self.price_P


def fit_router(
    config: RoutingConfig,
    features_ND: np.ndarray,
    choices: Sequence[int],
    seed: int,
    rule: RouterFunctions | None = None,
    label_N: np.ndarray | None = None,
) -> Router:
    """Fits a router to its documents.

    Args:
      choices: the number of experts of each choice level. Paths are their product, in row-major
        order. Empty: one path.
      rule: fits in the place of the kinds here, and may use `config` otherwise.
      label_N: for the rule, the best path of each document if known.

    Raises:
      TooFewRouterDocuments: fewer documents than paths.
      BadFeatures: values that are not finite, or a vector too short to be cut in as many parts as
        there are levels.
      BadRouterRule: the rule returned no arrays, or costs of other documents or paths.

    Source: DiPaCo section 2.4.
    """
    num_paths = math.prod(choices)
    check_features(features_ND, features_ND.shape[1])
    if len(features_ND) < num_paths:
        raise TooFewRouterDocuments(documents=len(features_ND), paths=num_paths)
    if rule is not None:
        router = Router(
            kind=OWN,
            normaliser=fit_normaliser(np.zeros((1, features_ND.shape[1]), np.float32), "none"),
            centres=(),
            price_P=np.zeros(num_paths),
            own=fit_own(rule, features_ND, choices, seed, label_N),
        )
        router.costs(features_ND)  # checked before the run keeps the router
        return router
    parts = tuple(choices) if config.kind == "product_kmeans" and choices else (num_paths,)
    if len(parts) > features_ND.shape[1]:
        raise BadFeatures(
            given=f"{features_ND.shape[1]} values a document",
            expected=f"a product needs one or more for each of {len(parts)} levels",
            cure="Take a wider model, or routing.kind = kmeans.",
        )
    normaliser = fit_normaliser(features_ND, config.normalise, len(parts))
    if config.kind == RANDOM:
        price_P = np.zeros(num_paths)
        return Router(
            kind=config.kind, normaliser=normaliser, centres=(), price_P=price_P, seed=seed
        )
    centres, price_P = fit_centres(
        normaliser.apply(features_ND),
        parts,
        floor=config.floor,
        capacity=config.capacity,
        seed=seed,
    )
    return Router(kind=config.kind, normaliser=normaliser, centres=centres, price_P=price_P)


def linear_router(kind: str, weight_DP: np.ndarray) -> Router:
    """A router whose scores are features @ weights, float32 [D, P], without normalisation."""
    num_dims, num_paths = weight_DP.shape
    as_they_are = fit_normaliser(np.zeros((1, num_dims), np.float32), "none")
    return Router(
        kind=kind,
        normaliser=as_they_are,
        centres=(),
        price_P=np.zeros(num_paths),
        weight_DP=weight_DP,
    )


def save(router: Router) -> bytes:
    """The router as one safetensors object. Equal routers give equal bytes."""
    # One metadata key: safetensors writes several in an order that differs from process to process.
    metadata = {"kind": router.kind, "version": router.version}
    return safetensors.numpy.save(_tensors(router), {"router": json.dumps(metadata)})


def load(data: bytes, rule: RouterFunctions | None = None) -> Router:
    """The router that `save` made these bytes from. `rule` reads the values of a user's router.

    Raises:
      DamagedRouter: the bytes are no router, or were changed.
    """
    try:
        tensors = safetensors.numpy.load(data)
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        router = _from_tensors(json.loads(header["__metadata__"]["router"])["kind"], tensors, rule)
        is_whole = save(router) == data  # the version is in there, so a flipped value shows too
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedRouter(problem=f"it cannot be read ({error})") from error
    if not is_whole:
        raise DamagedRouter(problem="its values do not have the version it was saved with")
    return router


def _tensors(router: Router) -> dict[str, np.ndarray]:
    normaliser = router.normaliser
    tensors = {
        "mean": normaliser.mean_D,
        "scale": normaliser.scale_D,
        "has_unit_length": np.array([normaliser.has_unit_length], np.uint8),
        "price": router.price_P,
    }
    if normaliser.rotation_DE is not None:
        tensors["rotation"] = np.ascontiguousarray(normaliser.rotation_DE)
    if router.weight_DP is not None:
        tensors["weight"] = np.ascontiguousarray(router.weight_DP)
    if router.seed is not None:
        tensors["seed"] = np.array([router.seed], np.uint64)
    if router.own is not None:
        for name, values in router.own.values.items():
            tensors[f"{OWN_VALUES}{name}"] = values
    for part, centre_KD in enumerate(router.centres):
        tensors[f"centre_{part:02d}"] = np.ascontiguousarray(centre_KD)
    return tensors


def _from_tensors(
    kind: str, tensors: dict[str, np.ndarray], rule: RouterFunctions | None
) -> Router:
    if (kind == OWN) != (rule is not None):
        raise ValueError("it was fitted by another rule than it is read by")
    normaliser = Normaliser(
        mean_D=tensors["mean"],
        scale_D=tensors["scale"],
        has_unit_length=bool(tensors["has_unit_length"][0]),
        rotation_DE=tensors.get("rotation"),
    )
    centres = tuple(tensors[name] for name in sorted(tensors) if name.startswith("centre_"))
    return Router(
        kind=kind,
        normaliser=normaliser,
        centres=centres,
        price_P=tensors["price"],
        weight_DP=tensors.get("weight"),
        seed=int(tensors["seed"][0]) if "seed" in tensors else None,
        own=None
        if rule is None
        else OwnCosts(
            rule,
            {
                name.removeprefix(OWN_VALUES): values
                for name, values in tensors.items()
                if name.startswith(OWN_VALUES)
            },
        ),
    )


def check_features(features_ND: np.ndarray, num_dims: int) -> None:
    """Raises `BadFeatures` unless they are [documents, num_dims] finite numbers."""
    if features_ND.ndim != 2 or features_ND.shape[1] != num_dims:
        raise BadFeatures(
            given=f"an array of shape {features_ND.shape}",
            expected=f"the router takes [documents, {num_dims}]",
            cure="Use the base model that the router was fitted with.",
        )
    if not np.isfinite(features_ND).all():
        raise BadFeatures(
            given="not all finite numbers",
            expected="distances need them",
            cure="The base model has diverged: lower its learning rate.",
        )
