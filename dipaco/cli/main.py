"""`dipaco VERB ...`: finds the verb, runs it, and prints errors as sentences."""

import argparse
import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from dipaco.cli import (
    ablate,
    begin,
    clean,
    completion,
    config,
    dashboard,
    doctor,
    evaluate,
    export,
    generate,
    hub,
    inspect,
    launch,
    monitor,
    plan,
    retry,
    roles,
    rollback,
    run_commands,
    scale,
    serve,
    status,
    swarm,
    train,
    upgrade,
)
from dipaco.cli.errors import FileRefused, NoDevice, NotText
from dipaco.cli.interrupts import (
    EXIT_INTERRUPTED,
    end_at_once_in_imports,
    interrupted_message,
)
from dipaco.cli.parser import Parser
from dipaco.data.document import printable
from dipaco.errors import FILE_ERRNOS, DipacoError, DiskFull, missing_packages_named, one_line

VERBS = {
    "train": train,
    "plan": plan,
    "ablate": ablate,
    "status": status,
    "inspect": inspect,
    "dashboard": dashboard,
    "generate": generate,
    "serve": serve,
    "evaluate": evaluate,
    "export": export,
    "push": hub.PUSH,
    "pull": hub.PULL,
    "config": config,
    "doctor": doctor,
    "begin": begin,
    "launch": launch,
    "scale": scale,
    "worker": roles.WORKER,
    "executor": roles.EXECUTOR,
    "evaluator": roles.EVALUATOR,
    "pretrain": roles.PRETRAINER,
    "monitor": monitor,
    "retry": retry,
    "pause": run_commands.PAUSE,
    "resume": run_commands.RESUME,
    "drain": run_commands.DRAIN,
    "swarm": swarm,
    "rollback": rollback,
    "clean": clean,
    "upgrade": upgrade,
    "completion": completion,
}

DESCRIPTION = """\
Train one large modular language model as many small paths (DiPaCo, arXiv 2403.10616).

  dipaco train configs/quickstart.py --run runs/quickstart    text, training, a table at the end
  dipaco plan configs/quickstart.py --mbit 20                 what that will need
  dipaco status --run runs/quickstart                         its progress
  dipaco dashboard --run runs/quickstart                      the same as a page, and replayed
  dipaco ablate configs/ablations/sharing.py --run runs/sharing    many runs, one table
  dipaco generate --run runs/quickstart --prompt "In the beginning"
  dipaco serve --run runs/quickstart                          over HTTP, with a page to try it
"""


class _PrintVersion(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        from dipaco.runs.version import described_version

        print(f"dipaco {described_version()}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Every verb with its arguments."""
    top = Parser(prog="dipaco", description=DESCRIPTION)
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print it and exit")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        verb.add_arguments(verbs.add_parser(name, help=verb.HELP, description=verb.__doc__))
    verbs.choices["completion"].set_defaults(completed=top)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and returns the exit code: 0 done, 2 an error that a person can correct, 3 the
    worker's name is taken, 4 a fault of this machine, 5 a task of the run has failed, 130
    interrupted.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        _open_closed_streams()
        _show_warnings_as_sentences()
        _write_any_text()
    if not words:
        parser().print_help(sys.stderr)
        return 2
    if arguments is None:
        end_at_once_in_imports(words)
    try:
        for word in words:
            if not _is_text(word):
                raise NotText(argument=printable(word))
        options = parser().parse_args(words)
        with missing_packages_named():
            code = VERBS[options.verb].run(options)
        sys.stdout.flush()  # here, so that its errors are handled below
        return code
    except DipacoError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        print(interrupted_message(words), end="", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # the reader of a pipe has left (`| head`)
        return 0
    except (RuntimeError, AssertionError) as error:
        if not _is_of_devices(error):
            raise
        asked = os.environ.get("JAX_PLATFORMS") or "any kind"
        return _refuse(NoDevice(asked=asked, problem=one_line(error) or "none was found"))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _forget_output()
            return _refuse(DiskFull(file=error.filename or "the output or the log"))
        if error.filename is None or error.errno not in FILE_ERRNOS:
            raise
        return _refuse(FileRefused(file=error.filename, problem=error.strerror))


class _WarningFormatter(logging.Formatter):
    """`warning: MESSAGE`, as the other lines of a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


def _open_closed_streams() -> None:
    """A stream that the caller has closed (`>&-`, a daemon) leads nowhere. The next file that is
    opened would otherwise have its number, and get what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _write_any_text() -> None:
    """A letter that the terminal's encoding has not, as ASCII has no Hebrew, becomes `\\u05d0`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_text(word: str) -> bool:
    """False for an argument with bytes that are not text, such as a name in Latin-1."""
    return not any(0xDC80 <= ord(letter) <= 0xDCFF for letter in word)


def _show_warnings_as_sentences() -> None:
    """Whichever library sets up logging later."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_WarningFormatter())
    logging.basicConfig(handlers=[handler])


def _refuse(error: DipacoError) -> int:
    text = "\n".join(map(printable, str(error).split("\n")))
    print(f"{type(error).__name__}: {text}", file=sys.stderr)
    return error.exit_code


def _is_of_devices(error: Exception) -> bool:
    """True for an error that JAX raises where it looks for devices."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename.endswith("xla_bridge.py")


def _forget_output() -> None:
    """Discards the rest of standard output, which Python would otherwise fail to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
