"""Errors of this room: command lines that make no sense. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class FileRefused(DipacoError):
    """{file}: {problem}. Check the name, and who may read and write there."""


class OptionMissing(DipacoError):
    """`{option}` is left out. Expected {expected}."""


class BadKeyFile(DipacoError):
    """The file of API keys {file} cannot be used: {problem}. Give one key a line."""


class NoSuchCredential(DipacoError):
    """Nobody has a pass in the name of {name}. There are passes for: {known}."""


class TransportMismatch(DipacoError):
    """The swarm of this path is reached at {theirs}, and this backbone would listen on {ours}: its peers could not reach both. Give `--listen` with an address of that kind. If {worker} is dead, `--name {worker}` takes its place."""


class PathNeeded(DipacoError):
    """This run has {paths} paths, and a swarm is the workers of one: say which with --path 0 to {last}."""


class NoSuchArm(DipacoError):
    """This run has no arm `{arm}`. It has: {known}."""


class UnknownImageFormat(DipacoError):
    """`--picture {file}` does not end as a picture does. Give a file that ends in one of {known}."""


class NotForSweeps(DipacoError):
    """`--set {name}=...` cannot be given to a sweep: {instead}."""


class SweepNeedsFolder(DipacoError):
    """A sweep is kept in a folder of this machine, and {given} is in a bucket. Give a folder; single rows can be run in a bucket with `dipaco train`."""


class RowsFailed(DipacoError):
    """{count} of the sweep's runs could not be finished: {problems} The others are whole; the same command goes on with what is left."""
