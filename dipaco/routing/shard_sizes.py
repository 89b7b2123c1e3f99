"""A sentence on the shards that are outside their bounds.

Prices are fitted to the first choices of the router's documents, and hold exactly for those. All
documents pay the same prices. If there are many more of them, a path may get somewhat more, or
less, than its bounds say. With overlap, documents have further choices, which nothing bounds.
"""

from collections.abc import Sequence

from dipaco.plural import listed
from dipaco.routing.capacity import bounds
from dipaco.routing.config import RANDOM, RoutingConfig

MOST_NAMED = 8  # paths
ROUTER_DOCUMENTS = 50  # router documents of a path that make its share about right
WIDEST = 0.3  # a router fraction beyond leaves too little to train on


def outside_bounds(config: RoutingConfig, documents: Sequence[int], phase: int = 0) -> list[int]:
    """The paths whose shards have fewer or more documents than `routing.floor` and
    `routing.capacity` say. None if these bound nothing.

    Args:
      phase: documents were routed before this phase.
    """
    has_target = bool(phase) and config.target_share is not None
    if config.kind == RANDOM or has_target:
        return []
    least, most = bounds(sum(documents), len(documents), config.floor, config.capacity)
    return [path for path, count in enumerate(documents) if not least <= count <= most]


def sentence_on_bounds(config: RoutingConfig, documents: Sequence[int], phase: int = 0) -> str:
    """A sentence that names the paths outside, with distance, reason and remedy. Empty if there are
    none. Arguments as in `outside_bounds`.
    """
    outside = outside_bounds(config, documents, phase)
    if not outside:
        return ""
    total, num_paths = sum(documents), len(documents)
    least = config.floor / num_paths
    most = 1.0 / config.overlap  # a path with every document
    if config.capacity is not None:
        most = min(most, config.capacity / num_paths)
    named = listed((f"path {path} {documents[path] / total:.1%}" for path in outside), MOST_NAMED)
    of_what = "the training documents"
    if config.overlap == 1:
        reason = (
            "these bounds hold for the documents that the router was fitted to, and about for "
            "others. With more of those (`data.router_fraction`) shards come closer."
        )
    else:
        of_what = (
            f"the places in all shards, of which every training document takes {config.overlap:,}"
        )
        reason = (
            "these bounds hold for first choices, exactly for the documents that the router was "
            "fitted to, and about for others. The further choices that `routing.overlap` adds are "
            "not bounded. With more router documents (`data.router_fraction`) first choices come "
            "closer."
        )
    return (
        f"{named} of {of_what}, where `routing.floor` and `routing.capacity` mean "
        f"{least:.1%} to {most:.1%}: {reason}"
    )


def wider_router_fraction(fraction: float, num_train: int, num_paths: int) -> float | None:
    """A larger `data.router_fraction` that brings shards closer to their bounds: twice the present
    one, or more if that gives a path fewer than `ROUTER_DOCUMENTS`. None if it is wide enough.

    Args:
      num_train: training documents, nearly all documents.
    """
    needed = ROUTER_DOCUMENTS * num_paths / max(num_train, 1)
    wider = round(min(max(2 * fraction, needed), WIDEST), 3)
    return wider if wider > fraction else None
