"""Errors of this room: command lines that cannot be followed. The docstring of a class is its message."""

from dipaco.errors import DipacoError, MachineFault


class FileRefused(DipacoError):
    """{file}: {problem}. Check the name and the permissions."""


class NotText(DipacoError):
    """The argument `{argument}` holds bytes that are not text in this system's encoding, mostly UTF-8. Write it in that encoding; a file or folder of such a name must be renamed."""


class ConfigExists(DipacoError):
    """{file} is there already. A copy never overwrites. Give another name, or remove it."""


class ConfigMissing(DipacoError):
    """CONFIG is missing: a file with a function `run()`, or the name of a shipped config, as in `dipaco config show quickstart`. Without one, `--explain NAME` alone says what a setting is."""


class OptionMissing(DipacoError):
    """`{option}` is left out. Expected {expected}."""


class BadKeyFile(DipacoError):
    """The file of API keys {file} cannot be used: {problem}. Give one key a line."""


class NoSuchCredential(DipacoError):
    """There is no credential for {name}. There are credentials for: {known}."""


class NoRunToLead(DipacoError):
    """{folder} holds no run. {meant}Begin one, and lead the swarm of one of its paths: dipaco swarm start CONFIG --run {folder!q}"""


class PathNeeded(DipacoError):
    """This run has {paths} paths, and a swarm trains one path. Choose it with --path 0 to {last}."""


class NoSuchFailure(DipacoError):
    """No task `{task}` has failed. Those that have: {known}."""


class NotForSweeps(DipacoError):
    """`--set {name}=...` cannot be given to a sweep: {instead}."""


class SweepNeedsFolder(DipacoError):
    """A sweep needs a folder on this machine, and {given} is in a bucket. Give a folder. A single row can be run in a bucket with `dipaco train`."""


class OutputNotLocal(DipacoError):
    """{given} is to be written, and it is no place on this machine: only runs are in buckets. Give the name of a file or folder here, and copy it there."""


class RowsFailed(DipacoError):
    """{count} of the sweep's runs could not be finished: {problems} The others are finished. The same command continues with the rest."""


class NoDevice(MachineFault):
    """JAX has no devices of {asked} here: {problem}. Set JAX_PLATFORMS to what this machine has, as `cpu`, or leave it out."""


class NotOnHub(DipacoError):
    """`{given}` is no repository of the Hugging Face Hub. Expected hf://OWNER/NAME."""


class ExportUnfinished(DipacoError):
    """{folder} has no README.md: an export that was interrupted, or is of an older version. Run the same `dipaco export` again, or write one. Nothing was sent."""


class NoRepository(DipacoError):
    """{hub} shows no repository {name} to this machine. Make it (`hf repos create {name} --private`), or log in as someone who may see it (`hf auth login`). Nothing was changed."""


class HubRefused(DipacoError):
    """{hub} refuses {name}: {problem}. A token that may do this is given by `hf auth login`, or HF_TOKEN. Nothing of the repository was changed."""


class HubFailed(MachineFault):
    """{hub}: {problem}. What has arrived is kept: the same command goes on from there."""
