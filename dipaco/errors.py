"""The base class of all errors that a person can correct, and the errors that several rooms raise.
Other errors are in `errors.py` of their room. The docstring of a class is its message.

A message says what came, what was expected and what to do. Errors are raised with named values:

    raise PartUnowned(part="block_07", owned="early = block_01..04")

The command line prints `NameOfTheError: message` and ends with the error's exit code. A rule that
only this code can break is an `assert`, not an error.
"""

import contextlib
import errno
import shlex
import string
from collections.abc import Generator
from pathlib import Path

# Exit code of a process that a run does not want now: it was drained, or is of another version than
# the run. Those who start processes start it again later.
NOT_NOW = 6

# Numbers of an OSError about the file that it names (and not, say, about too many open files).
FILE_ERRNOS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EIO,
    }
)


# Names under which packages are imported that are not in `serving/requirements.txt`.
NOT_FOR_SERVING = frozenset({"array_record", "grain", "matplotlib", "orbax", "pyarrow", "scipy"})
# Names of what the extra `train` brings.
OF_TRAINING = NOT_FOR_SERVING | {"tensorstore", "tokenizers", "yaml"}
EXTRAS = {  # the smallest extra that brings a package, by the package's name in Python
    **dict.fromkeys(OF_TRAINING, "train"),
    **dict.fromkeys(("aiohttp", "httptools", "jinja2", "llguidance"), "serve"),
    **dict.fromkeys(("starlette", "uvicorn"), "serve"),
    "cryptography": "volunteer",
    "prometheus_client": "metrics",
    "psycopg": "postgresql",
    "gguf": "gguf",
    "huggingface_hub": "hub",
    "ray": "ray",
    "datasets": "datasets",
    "shtab": "completion",
}


class _Message(string.Formatter):
    """`str.format` with one addition: `{folder!q}` is one word of a shell."""

    def convert_field(self, value: object, conversion: str | None) -> object:
        if conversion == "q":
            return shlex.quote(str(value))
        return super().convert_field(value, conversion)


class DipacoError(Exception):
    """An error that a person can correct."""

    exit_code = 2  # exit code of a command that ends with this error
    is_lasting = False

    def __init__(self, **values: object):
        self.values = values
        # Python strips docstrings with `-OO`: then the values are the message.
        said = type(self).__doc__ or "; ".join(f"{name}: {{{name}}}" for name in values)
        message = " ".join(said.split())
        super().__init__(_Message().format(message, **values))

    def __reduce__(self):
        return _rebuild, (type(self), self.values)


def _rebuild(kind: type[DipacoError], values: dict[str, object]) -> DipacoError:
    return kind(**values)


class MachineFault(DipacoError):
    """Something is wrong with this machine or its connections. Another machine may do the same work.
    Not raised itself.
    """

    exit_code = 4  # a launcher starts another worker, after a wait


class LastingError(DipacoError):
    """A task that raises it would meet it again, anywhere. Not raised itself."""

    is_lasting = True


class CheckpointExists(DipacoError):
    """`{folder}` is there already. An export never overwrites. Give another, or remove this one."""


class BadSource(LastingError):
    """The data source `{source}` cannot be read: {problem} {advice}"""


class CorpusMissing(DipacoError):
    """{folder} holds no finished corpus. Prepare it first: dipaco train CONFIG --run DIR."""


class NoTexts(LastingError):
    """There is no text to evaluate: none was given, or all of it is empty. Check the names."""


class NothingToScore(LastingError):
    """Documents: {documents}, and none is longer than the router's prefix: there is nothing to
    predict. Give longer documents.
    """


class ExtraMissing(MachineFault):
    """{feature} needs the package `{package}`, which is not installed. Install it with `{install}`."""

    def __init__(self, *, feature: str, package: str, extra: str, install: str = ""):
        super().__init__(
            feature=feature, package=package, extra=extra, install=install or _install(extra)
        )


def _install(extra: str) -> str:
    """The command that installs an extra. From a wheel it names the packages: no index has dipaco."""
    import importlib.metadata

    home = Path(__file__).parents[1]
    if (home / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{home}[{extra}]')}"
    lines = importlib.metadata.requires("dipaco") or []
    needed = [line.partition(";")[0].strip() for line in lines if f'extra == "{extra}"' in line]
    return f"pip install {shlex.join(needed)}"


def one_line(error: BaseException) -> str:
    """What a library says, as a part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


@contextlib.contextmanager
def needs_extra(extra: str, *, package: str = "", feature: str) -> Generator[None]:
    """Around the imports of what an extra brings. Raises `ExtraMissing` where they fail."""
    try:
        yield
    except ImportError as error:
        missing = package or error.name or extra
        raise ExtraMissing(feature=feature, package=missing, extra=extra) from error


def missing_package(error: BaseException) -> ExtraMissing | None:
    """The error of an import that fails on a machine without what an extra brings. None for any
    other import.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    return ExtraMissing(feature="This", package=package, extra=extra) if extra else None


@contextlib.contextmanager
def missing_packages_named() -> Generator[None]:
    """Also a decorator. Raises `ExtraMissing` where an import of what an extra brings fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        raise missing from error


class BadSetting(LastingError):
    """`{name}` is {value!r}. Expected {expected}.{hint}"""

    def __init__(self, *, name: str, value: object, expected: str, hint: str = ""):
        super().__init__(name=name, value=value, expected=expected, hint=hint)


class SettingsDisagree(LastingError):
    """Two settings do not fit together: {problem}."""


class UnknownSetting(DipacoError):
    """`{name}` is not a setting.{hint}"""


class BadOverride(DipacoError):
    """`--set {text}` is not of the form NAME=VALUE, as in `--set inner.steps=50`."""


class BadConfigFile(DipacoError):
    """The config {file} cannot be used: {problem}."""


class LedgerDamaged(DipacoError):
    """The ledger {file} cannot be read: {problem}. Restore it from a copy, or start a new run folder (for a base model under `shared/` of a sweep: remove its folder, and the sweep makes it again)."""


class ClaimLost(DipacoError):
    """Task `{task}` was given to another worker, or is finished already. Nothing was recorded."""


class DiskFull(MachineFault):
    """No space left on the disk of {file}. What was there before is whole.
    Free some space and run the same command again: it goes on from here.
    """


class NotWritable(MachineFault):
    """Cannot write {file}: {problem}. What was there before is whole."""


class CannotListen(DipacoError):
    """Cannot listen on {where}: {problem}. Give another `{option}`, or stop what listens there."""


class NoSuchPath(DipacoError):
    """There is no path {path}. Paths are numbered 0 to {last}."""


class RunBusy(DipacoError):
    """Another process is working on {folder}. Wait for it or stop it. `dipaco status` shows how far it is."""


class RunOfOtherVersion(DipacoError):
    """{folder} is a run of dipaco {found}; this is {here}. Nothing was changed.
    Continue with version {found}, or run `dipaco upgrade --run RUN`: it becomes a run of this one, for all its workers.
    """

    exit_code = NOT_NOW  # an upgrade may be under way


class WorkersActive(DipacoError):
    """{what} needs a run without active workers: {who}. Stop them with `dipaco drain --run RUN`, then try again. Nothing was changed."""


class Diverged(DipacoError):
    """The loss became {loss} at step {step} of the phase. Nothing was recorded. Lower `inner.learning_rate`."""


class BadSweep(DipacoError):
    """The sweep {file} cannot be used: {problem}."""
