"""A user's router: a pair of pure functions, one that fits values and one that reads them.

A rule is a function of the routing settings that returns the pair. The fitted values are a few
arrays, which a run keeps like any router's, so that every worker and every server reads the same.
`router.Router` makes choices of the costs, with the promises of every router.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.routing.blocks import in_blocks
from dipaco.routing.config import RoutingConfig
from dipaco.routing.errors import BadRouterRule

NUMBERS = "fiub"  # kinds of NumPy's types: float, int, unsigned, bool
MOST_BYTES = 8  # bytes of one number. Files of arrays know no wider ones

Values = Mapping[str, np.ndarray]  # fitted arrays, by names that the rule chooses


class RouterFunctions(NamedTuple):
    """The two functions of a router: its fit, and the costs of documents.

    fit(features_ND, choices, seed, label_N) -> values
      features_ND: float32 [N, D], raw features of the router's documents.
      choices: the number of experts of each choice level. Paths are their product, row-major.
      seed: the seed of every random draw.
      label_N: int [N], the path that predicts each document best, at an alternation. None before
        the paths have trained.
      It returns arrays of NumPy's own numbers of at most 64 bits, by names that are strings. They
        are kept in the byte order of the machine.

    costs(values, features_BD) -> [B, P]
      The cost of each document on each path, the lowest is taken. It treats every row alone. Rows
      are float64 and always as many, padded with zeros, so that a document alone gets the bits that
      it has in a batch.
    """

    fit: Callable[[np.ndarray, Sequence[int], int, np.ndarray | None], Values]
    costs: Callable[[Values, np.ndarray], np.ndarray]


RouterRule = Callable[[RoutingConfig], RouterFunctions]


class OwnCosts(NamedTuple):
    """The costs by a user's fitted router."""

    functions: RouterFunctions
    values: Values

    def of(self, features_ND: np.ndarray, num_paths: int) -> np.ndarray:
        """Raw features [N, D] -> float64 [N, P]. Raises `BadRouterRule`."""
        cost_NP = in_blocks(
            lambda rows_BD: np.asarray(self.functions.costs(self.values, rows_BD), np.float64),
            features_ND,
        )
        if cost_NP.shape != (len(features_ND), num_paths):
            raise BadRouterRule(
                problem=f"its costs have the shape {cost_NP.shape}, and there are "
                f"{len(features_ND)} documents and {num_paths} paths"
            )
        if np.isnan(cost_NP).any():
            raise BadRouterRule(problem="a cost is not a number")
        return cost_NP


def fit_own(
    functions: RouterFunctions,
    features_ND: np.ndarray,
    choices: Sequence[int],
    seed: int,
    label_N: np.ndarray | None,
) -> OwnCosts:
    """Fits the rule's values to the router's documents. Raises `BadRouterRule`."""
    if not isinstance(functions, RouterFunctions):
        raise BadRouterRule(
            problem=f"it returned {type(functions).__name__}, and not RouterFunctions(fit, costs)"
        )
    values = functions.fit(features_ND, tuple(choices), seed, label_N)
    if not isinstance(values, Mapping):
        raise BadRouterRule(
            problem=f"`fit` returned {type(values).__name__}, and not arrays by their names"
        )
    return OwnCosts(functions, {name: _kept(name, array) for name, array in values.items()})


def _kept(name: str, value: np.ndarray) -> np.ndarray:
    """A fitted value as a run can keep it and read the same again. Raises `BadRouterRule`."""
    if not isinstance(name, str):
        raise BadRouterRule(problem=f"a value is named {name!r}, and a name is a string")
    array = np.asarray(value)
    if array.dtype.kind not in NUMBERS or array.dtype.itemsize > MOST_BYTES:
        raise BadRouterRule(
            problem=f"its value `{name}` is no array of numbers that a run can keep (bool, "
            f"integers or floats of at most 64 bits): its type is {array.dtype}"
        )
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")
