"""Routers of one's own: k-means as built in, equal bit for bit, and one by direction alone.

    python configs/examples/own_router.py
    PYTHONPATH=configs/examples dipaco worker --run runs/own_router

The first line trains `toy`, routed by direction, in half a minute; by the second, any machine takes
part; `dipaco serve` needs the same PYTHONPATH. Axes: N documents, D dimensions, P paths.
"""

import math

import numpy as np

import dipaco
from dipaco.routing.config import RoutingConfig
from dipaco.routing.normalise import Normaliser, fit_normaliser
from dipaco.routing.own_router import RouterFunctions
from dipaco.routing.product import fit_centres, path_costs


def nearest(settings: RoutingConfig) -> RouterFunctions:
    """The nearest centre under prices, which bound the documents of a path."""

    def fit(features_ND, choices, seed, label_N):
        to = fit_normaliser(features_ND, settings.normalise)
        (centre_PD,), price_P = fit_centres(
            to.apply(features_ND),
            (math.prod(choices),),
            floor=settings.floor,
            capacity=settings.capacity,
            seed=seed,
        )
        return {"mean": to.mean_D, "scale": to.scale_D, "centre": centre_PD, "price": price_P}

    def costs(values, features_ND):
        has_unit_length = "l2" in settings.normalise
        mean_D, scale_D = values["mean"], values["scale"]
        to = Normaliser(mean_D=mean_D, scale_D=scale_D, has_unit_length=has_unit_length)
        return path_costs(to.apply(features_ND), (values["centre"],)) + values["price"]

    return RouterFunctions(fit, costs)


def by_direction(settings: RoutingConfig) -> RouterFunctions:
    """The centre at the smallest angle."""

    def costs(values, features_ND):
        direction_PD = values["centre"] / np.linalg.norm(values["centre"], axis=1, keepdims=True)
        return -((features_ND - values["mean"]) / values["scale"]) @ direction_PD.T

    return RouterFunctions(nearest(settings).fit, costs)


if __name__ == "__main__":
    import own_router  # a worker imports it by this name, and cannot import a script

    rules = dipaco.Rules(router=own_router.by_direction)
    print(dipaco.run("toy", "runs/own_router", rules=rules).report)
