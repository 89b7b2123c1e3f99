"""Discriminative routing: a classifier from features to the path that predicts a document best.

DiPaCo (arXiv 2403.10616) section 2.4. k-means groups documents that look alike to the base model,
but routing needs the *path* that predicts them. So every path is scored on documents that train
none. The best path is a document's label, and a multinomial logistic regression predicts it from
the feature. A bias then gives every path its share (`calibration`).

The regression is convex, so any solver will do: L-BFGS takes a few dozen passes over all documents
and needs no learning rate. SciPy's solver gets the gradient from the device: optax's takes seven
seconds to compile.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dipaco.routing.calibration import calibrate, target_share
from dipaco.routing.capacity import bounds
from dipaco.routing.config import RoutingConfig
from dipaco.routing.errors import TooFewRouterDocuments
from dipaco.routing.normalise import fit_normaliser
from dipaco.routing.router import Router, check_features

KIND = "discriminative"
STEPS = 200  # most steps of L-BFGS
# L2 on the weights, not stated in the paper. It only keeps them finite where classes part cleanly.
REGULARISATION = 1e-2
SETTLED = 1e-7  # stop when a pass lowers the loss by a smaller share


def fit_classifier(
    config: RoutingConfig, features_ND: np.ndarray, label_N: np.ndarray, num_paths: int
) -> Router:
    """Fits a classifier to the best path of each of its documents. `calibrated` balances it.

    Args:
      label_N: int [N] the best path of each, from `labels.best_paths`.

    Raises:
      TooFewRouterDocuments: fewer documents than paths.
      BadFeatures: values that are not finite.

    Source: DiPaCo section 2.4.
    """
    check_features(features_ND, features_ND.shape[1])
    if len(features_ND) < num_paths:
        raise TooFewRouterDocuments(documents=len(features_ND), paths=num_paths)
    normaliser = fit_normaliser(features_ND, config.normalise)
    x_ND = normaliser.apply(features_ND)
    weight_DP, bias_P = logistic_regression(x_ND, label_N, num_paths, REGULARISATION)
    return Router(
        kind=KIND,
        normaliser=normaliser,
        centres=(),
        price_P=-bias_P.astype(np.float64),
        weight_DP=weight_DP,
    )


def calibrated(
    classifier: Router, config: RoutingConfig, features_ND: np.ndarray, label_N: np.ndarray
) -> Router:
    """The classifier with biases that give every path its share of these documents.

    Raises:
      BadSetting: a target share that they cannot meet.
    """
    share_P = target_share(
        label_N,
        classifier.num_paths,
        given=config.target_share,
        floor=config.floor,
        capacity=config.capacity,
    )
    within = None
    if config.target_share is None:
        within = bounds(len(label_N), classifier.num_paths, config.floor, config.capacity)
    # The router's costs are calibrated, so that its assignments meet the shares exactly.
    moved_P = calibrate(-classifier.costs(features_ND), share_P, within)
    return dataclasses.replace(classifier, price_P=classifier.price_P - moved_P)


def logistic_regression(
    x_ND: np.ndarray, label_N: np.ndarray, num_classes: int, regularisation: float
) -> tuple[np.ndarray, np.ndarray]:
    """Minimises mean cross-entropy + regularisation / 2 * |weights|^2.

    Returns:
      (float32 weights [D, classes], float32 biases [classes]). A class without labels has a low
      bias and small weights.
    """
    from scipy.optimize import minimize

    documents = jnp.asarray(x_ND, jnp.float32), jnp.asarray(label_N, jnp.int32)
    shape = x_ND.shape[1] + 1, num_classes  # the last row is the biases

    def loss(fitted):
        value, gradient = _loss(jnp.asarray(fitted.reshape(shape), jnp.float32), *documents)
        # The bias of a class without labels would fall without end, so biases are regularised too:
        # too little to matter where there are labels.
        strength = regularisation * np.append(np.ones(shape[0] - 1), 1e-3)[:, None]
        penalty = 0.5 * float((strength * fitted.reshape(shape) ** 2).sum())
        slope = np.asarray(gradient, np.float64) + strength * fitted.reshape(shape)
        return float(value) + penalty, slope.ravel()

    options = {"maxiter": STEPS, "ftol": SETTLED}
    start = np.zeros(shape[0] * shape[1])
    fitted = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
    weight_DP, bias_P = np.split(fitted.reshape(shape).astype(np.float32), [shape[0] - 1])
    return weight_DP, bias_P[0]


@jax.jit
@jax.value_and_grad
def _loss(fitted, x_ND, label_N):
    logit_NP = x_ND @ fitted[:-1] + fitted[-1][None, :]
    return optax.softmax_cross_entropy_with_integer_labels(logit_NP, label_N).mean()
