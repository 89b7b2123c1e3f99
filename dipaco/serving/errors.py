"""Errors of this room: requests and releases that cannot be served. The docstring of a class is its message."""

from dipaco.errors import DipacoError
from dipaco.store.errors import ObjectDamaged


class ContextTooLong(DipacoError):
    """The prompt has {num_tokens} tokens, and {where} holds {limit}. {remedy}"""


class EmptyPrompt(DipacoError):
    """The prompt is empty, and texts of this model have no start token to go on from. Give at least a word."""


class NoRoomForPath(DipacoError):
    """All {pinned} paths in memory are in use. Try again, or raise `--path-bytes`."""


class PathNotWhole(ObjectDamaged):
    """{problem}"""


class NoSuchModel(DipacoError):
    """The model `{name}` does not exist. This server has {known}."""


class ReleaseInconsistent(DipacoError):
    """The release of `{arm}` at phase {phase} is not one consistent set: {problem}. It is not served."""


class BadChatTemplate(DipacoError):
    """The chat template {file} cannot be used: {problem}."""


class QueueFull(DipacoError):
    """{waiting} requests are waiting already. Try again in a second."""


class GrammarFailed(DipacoError):
    """The text cannot go on as `response_format` says: {problem}. Simplify the schema."""


class NoGrammar(DipacoError):
    """This model's tokenizer has no structured output: {problem}. It needs a byte-level one, or one with bytes (SentencePiece). Leave `response_format` out."""


class LoopStopping(DipacoError):
    """The server is stopping: it finishes the requests that it has and takes no new ones. Try again later."""


class PathCacheTooSmall(DipacoError):
    """One path takes {num_bytes:,} bytes, and all paths together may take {max_bytes:,}. Raise `--path-bytes`."""


class BadUpstreams(DipacoError):
    """The upstreams of {file} cannot be used: {problem}."""


class NoUpstream(DipacoError):
    """No upstream of path {path} answers: {problem}. Try again later."""


class PathElsewhere(DipacoError):
    """This server has paths {paths} only. Name one of them as the model, such as `{name}`, or ask the router before it."""


class PathsDisagree(DipacoError):
    """`path` is {given}, and the model is path {named}. Leave one out."""


class TooManyMaps(DipacoError):
    """The compiled programs take {used:,} of the {most:,} memory maps that this machine allows a process. Serve with fewer `--rows`, or allow more: `sysctl vm.max_map_count=262144`."""
