"""Errors of this room: runs that cannot be begun, opened or continued. The docstring of a class is its message."""

from dipaco.errors import DipacoError, LastingError, MachineFault


class DatabaseNeeded(DipacoError):
    """The run {run} is in a bucket, so its workers may be on any machine, and SQLite serves one machine only. Give it a database: --database postgresql://HOST/NAME, or env:VARIABLE."""


class NoSuchRun(DipacoError):
    """{folder} holds no run. {meant}Begin one: dipaco train CONFIG --run {folder!q}"""


class NoSuchArm(DipacoError):
    """This run has no arm `{arm}`. It has: {known}."""


class ReleaseOfOtherRouter(DipacoError):
    """The release of `{arm}` at phase {phase} belongs to another router than its paths were trained with.
    Restore the run folder from one copy, or name a path with --path.
    """


class NotAllPaths(DipacoError):
    """Routing by likelihood compares the paths of a release, and that of `{arm}` at phase {phase} lacks some: {problem}.
    Restore them, name a path with --path, or route by features: --rule features.
    """


class FolderHoldsSweep(DipacoError):
    """{folder} holds a sweep, not a run. Its runs are the folders {folder}/rows/NAME/SEED; `dipaco dashboard --run {folder!q}` shows them, `dipaco ablate` continues it."""


class RunIsFile(DipacoError):
    """{folder} is a file, and a run is a folder. Nothing was changed. Give the run's folder, or a name that is not there yet."""


class LinkLeadsNowhere(MachineFault):
    """{folder} is reached by the link {link}, and {target} is not there. Is its disk mounted? Nothing was changed."""


class FolderHoldsOther(DipacoError):
    """{folder} holds no run, and other folders: {others}. Nothing was changed. Give the run a folder of its own, which need not be there yet."""


class RunOfOtherConfig(DipacoError):
    """{folder} holds a run of another config: {difference}. Nothing was changed.
    Give the same config to continue it, or another folder for a new run.
    """


class RunOfOtherRules(DipacoError):
    """{folder} holds a run of other rules: {there}; given were: {given}. Nothing was changed.
    Give the same rules to continue it, or none (it keeps its own), or another folder for a new run.
    """


class RuleUnnamed(DipacoError):
    """The {kind} cannot be used: {problem}. Workers import it by its name: write it as a function at the top level of a file of its own (in a notebook: a cell that begins with `%%writefile my_file.py`), put the file's folder on PYTHONPATH, import it from there, and pass that: rules=dipaco.Rules({field}=my_file.my_function)."""


class RuleNotImportable(DipacoError):
    """The {kind} of this run is `{name}`, and it cannot be imported here: {problem}. Put the folder of `{module}` on PYTHONPATH, or install it, on every machine that works on the run."""


class RuleDiffers(DipacoError):
    """The {kind} of this run is `{name}`, and {file} has another source than when the run began. Put that source back, or begin another run; start_from="DIR@base" takes over text and base model."""


class RuleStale(DipacoError):
    """{file} was edited after it was imported, and this process still runs the {kind} `{name}` of before. Start it again (a notebook: restart the kernel)."""


class RunOfOtherDatabase(DipacoError):
    """The facts of the run in {folder} are in {there}, not in {given}. Leave --database out, or give that one."""


class CorpusChanged(LastingError):
    """{folder} holds another corpus than the one this run has trained on: its sources have changed since.
    Restore that folder from a copy, or start a new run folder."""


class UnknownDevice(DipacoError):
    """`--device` is `{name}`, which is not known. Known are: {known}, here (the devices of this machine), and other slices of TPUs, such as v5e:2x4 or v5e:16x16."""


class DoesNotFit(DipacoError):
    """The training step does not fit {name}: it needs {needed} of a device's {memory}. {remedy}"""
