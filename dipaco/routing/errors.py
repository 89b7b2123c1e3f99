"""Errors of this room: documents and features that cannot be routed. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class TooFewRouterDocuments(DipacoError):
    """{documents} router documents cannot be divided among {paths} paths. Give at least one a path
    (fifty is better): raise `data.router_fraction`, add text, or take fewer paths.
    """

    is_lasting = True


class TooFewTrainingDocuments(DipacoError):
    """{documents} training documents cannot be shared out to {paths} small models, one for each path.
    Give at least one a path (fifty is better): lower `data.router_fraction` or `data.held_fraction`,
    add text, or take fewer paths.
    """

    is_lasting = True


class BadFeatures(DipacoError):
    """The routing features are {given}, but {expected}. {cure}"""

    is_lasting = True


class DamagedRouter(DipacoError):
    """The router is damaged: {problem}. Fetch it again, or fit it again from the base model."""


class BadRouterRule(DipacoError):
    """The own router of this run cannot be used: {problem}. See `RouterFunctions` in dipaco/routing/own_router.py."""

    is_lasting = True
