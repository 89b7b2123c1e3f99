"""Errors of this room: documents and features that cannot be routed. The docstring of a class is its message."""

from dipaco.errors import DipacoError, LastingError


class TooFewRouterDocuments(LastingError):
    """{documents} router documents cannot be divided among {paths} paths. Give at least one a path
    (fifty is better): raise `data.router_fraction`, add text, or take fewer paths.
    """


class TooFewTrainingDocuments(LastingError):
    """{documents} training documents cannot be shared out to {paths} small models, one for each path.
    Give at least one a path (fifty is better): lower `data.router_fraction` or `data.held_fraction`,
    add text, or take fewer paths.
    """


class BadFeatures(LastingError):
    """The routing features are {given}, but {expected}. {cure}"""


class DamagedRouter(DipacoError):
    """The router is damaged: {problem}. Fetch it again, or fit it again from the base model."""


class BadRouterRule(LastingError):
    """The own router of this run cannot be used: {problem}. See `RouterFunctions` in dipaco/routing/own_router.py."""
