"""Trackers, which send a run's numbers to TensorBoard, trackio or Weights & Biases.

Each tracker gets the numbers of every event that has a `step`, by the same names: `event/field`.
Text fields (an arm, a path) are part of the name, so that each has its own curve:
`path_trained/modular/3/loss`, `evaluated/modular/perplexity`. Paths are at different steps at one
time, so steps do not only rise. In Weights & Biases `step` is therefore a metric, and the other
numbers are drawn over it.

No tracker stops a run. A tracker that fails during the run is left out from then on. The server
that a tracker writes to, if any, is set by the tracker's variables: WANDB_MODE, WANDB_PROJECT,
TRACKIO_DIR, TRACKIO_SPACE_ID.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.errors import needs_extra
from dipaco.observe.errors import NoSuchTracker, TrackerRefused
from dipaco.observe.events import Event
from dipaco.observe.writers import EventWriter

PACKAGES = {  # tracker -> its package, and the feature that an error names
    "tensorboard": ("tensorboardX", "Writing TensorBoard files"),
    "trackio": ("trackio", "`--trackio`"),
    "wandb": ("wandb", "`--wandb`"),
}


class TrackedRun(NamedTuple):
    """A run as a tracker sees it."""

    name: str  # the config's name, which is the project
    title: str  # tells runs of a project apart, for people
    identity: str  # tells runs apart, for programs; a continued run keeps it
    config: str  # JSON
    folder: Path  # the run's folder; a tracker may keep files there


class Numbers(NamedTuple):
    """The numbers that a tracker draws for an event."""

    step: int
    values: dict[str, float]


def numbers_of(event: Event) -> Numbers | None:
    """The numbers of an event that has a `step`, by their names. None for any other event."""
    step = event.fields.get("step")
    if not isinstance(step, int):
        return None
    texts = [value for value in event.fields.values() if isinstance(value, str)]
    return Numbers(
        step,
        {
            "/".join([event.name, *texts, name]): value
            for name, value in event.fields.items()
            if name != "step" and isinstance(value, int | float)
        },
    )


def _library_of(tracker: str) -> Any:
    """The package of a tracker, which its extra installs. Raises `ExtraMissing`."""
    package, feature = PACKAGES[tracker]
    with needs_extra(tracker, package=package, feature=feature):
        return importlib.import_module(package)


class _Tracker(EventWriter):
    """Base class: passes the numbers of events to a library."""

    def write(self, event: Event) -> None:
        numbers = numbers_of(event)
        if numbers is not None and numbers.values:
            self._put(numbers)

    def _put(self, numbers: Numbers) -> None:
        raise NotImplementedError


class TensorBoard(_Tracker):
    """Event files of TensorBoard, in a folder.

    Raises:
      ExtraMissing: tensorboardX is not installed.
    """

    def __init__(self, folder: Path | str):
        self._writer = _library_of("tensorboard").SummaryWriter(str(folder))

    def _put(self, numbers: Numbers) -> None:
        for name, value in numbers.values.items():
            self._writer.add_scalar(name, value, numbers.step)

    def close(self) -> None:
        self._writer.close()


class Trackio(_Tracker):
    """A run of trackio, in the folder or the Space that its variables name.

    Raises:
      ExtraMissing: trackio is not installed.
      TrackerRefused: it cannot begin.
    """

    def __init__(self, run: TrackedRun):
        trackio = _library_of("trackio")
        advice = "Its variables TRACKIO_… say where a run is kept."
        # trackio prints to standard output, which is for the run's results.
        with _begins("trackio", "--trackio", advice), contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=run.name,
                name=f"{run.title} {run.identity[:8]}",
                config=json.loads(run.config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def _put(self, numbers: Numbers) -> None:
        self._run.log(numbers.values, step=numbers.step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


class WeightsAndBiases(_Tracker):
    """A run of Weights & Biases. Its files are in `RUN/wandb`.

    Raises:
      ExtraMissing: wandb is not installed.
      TrackerRefused: it cannot begin, most often because nobody is logged in.
    """

    def __init__(self, run: TrackedRun):
        wandb = _library_of("wandb")
        advice = "Log in (`wandb login`), or write to files alone: WANDB_MODE=offline."
        with _begins("Weights & Biases", "--wandb", advice):
            settings = wandb.Settings(console="off", x_disable_stats=True, disable_git=True)
            self._run: Any = wandb.init(
                project=run.name,
                name=run.title,
                id=run.identity,
                resume="allow",
                config=json.loads(run.config),
                dir=str(run.folder),
                settings=settings,
            )
            self._run.define_metric("step", hidden=True)
            self._run.define_metric("*", step_metric="step")

    def _put(self, numbers: Numbers) -> None:
        self._run.log({"step": numbers.step, **numbers.values})

    def close(self) -> None:
        self._run.finish()


@contextlib.contextmanager
def _begins(tracker: str, option: str, advice: str):
    try:
        yield
    except Exception as error:  # each library has its own
        problem = str(error).strip() or type(error).__name__
        raise TrackerRefused(
            tracker=tracker, option=option, problem=problem.rstrip(".") + ".", advice=advice
        ) from error


OPENED: dict[str, Callable[[TrackedRun, Path], _Tracker]] = {
    "tensorboard": lambda run, board: TensorBoard(board),
    "trackio": lambda run, _: Trackio(run),
    "wandb": lambda run, _: WeightsAndBiases(run),
}
TRACKERS = tuple(OPENED)


def check_trackers(names: Iterable[str]) -> None:
    """Raises `NoSuchTracker`, or `ExtraMissing` if a tracker's package is not installed."""
    for name in names:
        if name not in OPENED:
            raise NoSuchTracker(tracker=name, known=", ".join(TRACKERS))
        _library_of(name)


class Trackers(EventWriter):
    """Several trackers of one run.

    Args:
      names: names of `TRACKERS`.
      board: folder of TensorBoard's files.
      say: called with a sentence when a tracker is left out.

    Raises:
      NoSuchTracker, ExtraMissing, TrackerRefused: all trackers are closed again.
    """

    def __init__(
        self, names: Iterable[str], run: TrackedRun, board: Path, say: Callable[[str], object]
    ):
        self._say = say
        self._open: dict[str, _Tracker] = {}
        try:
            for name in dict.fromkeys(names):
                check_trackers([name])
                self._open[name] = OPENED[name](run, board)
        except BaseException:
            self._say = lambda _: None  # the error says enough
            self.close()
            raise

    def write(self, event: Event) -> None:
        """Passes an event to every open tracker."""
        for name, tracker in list(self._open.items()):
            try:
                tracker.write(event)
            except Exception as error:  # each library has its own
                del self._open[name]
                self._say(f"warning: {name} gets no more numbers of this run: {error}")
                with contextlib.suppress(Exception):  # its failure is reported already
                    tracker.close()

    def close(self) -> None:
        """Writes the last numbers, and closes every tracker."""
        while self._open:
            name, tracker = self._open.popitem()
            try:
                tracker.close()
            except Exception as error:  # each library has its own
                self._say(f"warning: {name} may miss the last numbers of this run: {error}")
