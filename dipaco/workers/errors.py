"""Errors of this room: tasks that cannot be done, and `Preempted`. The docstring of an error is its
message.
"""

from dipaco.control.facts.facts import PartialSnapshot
from dipaco.errors import DipacoError, LastingError, MachineFault


class Preempted(Exception):
    """A task was asked to stop before its end, and has saved what it had done."""

    def __init__(self, partial_snapshot: PartialSnapshot):
        self.partial_snapshot = partial_snapshot


class EmptyHoldOut(LastingError):
    """Path {path} has {documents} documents and none is long enough to be held out for early stopping. Use fewer paths, longer documents, or `inner.hold_out=0`."""


class NameTaken(DipacoError):
    """`{name}` is already a worker of this run, process {pid} on {host}. Give another `--name`, or end that process."""

    exit_code = 3  # a launcher tries again later: that worker may leave


class NameLost(DipacoError):
    """This worker was silent for so long that another has taken its name, `{name}`, and its tasks. Nothing that was recorded is lost; start it again under another `--name`."""

    exit_code = 3


class CannotRollBack(DipacoError):
    """The run cannot go back to phase {phase}: {problem} Nothing was changed."""


class CannotUndo(DipacoError):
    """Path {path} cannot go back to step {step}: of the phase that it is in there are steps {there}. `dipaco rollback` goes back to an earlier phase. Nothing was changed."""


class CannotTrainHere(MachineFault):
    """{problem} Nothing was begun. If other machines are to train this run, begin it here with `--database`, or with `dipaco launch`: this one prepares the text, and leaves the rest to them."""


class OptionTooLate(DipacoError):
    """{folder} holds a run that began {how}; `{option}` can only be given at the beginning. Nothing was changed.
    Leave the option out to continue the run, or give another folder for a new one."""


class ContributionRefused(DipacoError):
    """Path {path} made a contribution to {module} at phase {phase} that cannot be averaged: {reason} The path is trained again."""


class ContributionMissing(DipacoError):
    """Path {path} has not contributed to {module} at phase {phase} yet."""


class ModuleDiffers(DipacoError):
    """The outer step of {module} to phase {phase}, computed here from its contributions, gave other bits than are recorded. This process fetches modules whole from now on."""


class SnapshotOfOtherData(LastingError):
    """The snapshot of path {path} of `{arm}` belongs to other data than this run has now.
    Its corpus or shards were changed after it began: restore them, or start a new run folder.
    """


class TextChanged(DipacoError):
    """The sources no longer give the text that the base model of `{origin}` was trained on. Put them back as they were, or prepare that run again."""


class OtherSources(MachineFault):
    """This machine sees other text under `data.sources` than one that has read a slice of it: {files} files of {num_bytes} bytes, there {other_files} of {other_bytes}; names and sizes must agree. Give it the same files under the same names, and start the worker again."""


class SourcesMissing(MachineFault):
    """Another machine has read a slice of the text, and this one cannot: {problem} Give it the same files under the same names, and start the worker again."""


class SlicesDiffer(LastingError):
    """Slice {slice} of the text was read from other files under `data.sources` than the first: the machines that read them do not see the same names and sizes. Give all workers the same files, and begin the run in another folder."""


class CannotStartFrom(DipacoError):
    """Cannot start from {source}: {problem}."""


class RouterDiverged(DipacoError):
    """The loss of the router for re-routing became {loss} at step {step}; nothing was recorded. Lower `reroute.learning_rate` in a new run."""


class ModuleDiverged(DipacoError):
    """The outer step of {module} after phase {phase} made `{name}` infinite or not a number; nothing was recorded. Lower `outer.learning_rate` or `inner.learning_rate` in a new run."""


class ArmDiverged(DipacoError):
    """The perplexity of `{arm}` at phase {phase} is {perplexity}: its parameters have diverged. Lower `inner.learning_rate` or `outer.learning_rate` in a new run."""


class BadHosts(DipacoError):
    """{problem}. A worker of several hosts is started on each of them with the same `--hosts H` and `--coordinator HOST:PORT`, and `--host-index` 0 to H-1."""


class TaskFailed(DipacoError):
    """The run cannot go on. `{task}` failed {times}, at last on {worker}: {reason} {others}When the cause is put right, `dipaco retry --run RUN --all` has it done again; the command that began the run does the same, and goes on."""

    exit_code = 5  # workers and launchers of the run exit with it


class ManyTasksFailed(MachineFault):
    """{count} tasks in a row failed here, at last `{task}`: {reason} If they fail on other machines as well, the run is wrong; if not, this machine is."""


class LeaseNotRenewed(MachineFault):
    """No lease was renewed for {seconds:.0f} s: {problem} The task is given up, and others may have it."""
