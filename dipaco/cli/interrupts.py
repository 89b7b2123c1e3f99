"""Ctrl-C: what it says of each verb, and how it ends a process that is still loading libraries.

Python raises `KeyboardInterrupt` wherever the program is. Inside the imports of NumPy and JAX, the
first seconds of most verbs, that is swallowed, becomes another error, or ends in a segmentation
fault. A process that imports has nothing to put in order but its children, so where it has none it
ends there and then.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

EXIT_INTERRUPTED = 130
GO_ON = frozenset(  # those that, given again, continue where they were
    {
        *("train", "launch", "ablate", "export", "swarm start"),
        *("worker", "executor", "evaluator", "pretrain"),
    }
)
OF_IMPORTS = "<frozen importlib"  # the file that the frames of an import name


def interrupted_message(words: Sequence[str]) -> str:
    """What an interrupted command line says."""
    goes_on = not GO_ON.isdisjoint({words[0], " ".join(words[:2])})
    return f"\nInterrupted.{' The same command goes on from here.' if goes_on else ''}\n"


def end_at_once_in_imports(words: Sequence[str]) -> None:
    """From now on Ctrl-C ends the process if it is importing and has no children; else it raises as
    before. Changes nothing where Ctrl-C is ignored, as in a script's background process.
    """

    def interrupted(number: int, frame: FrameType | None) -> None:
        if not _is_importing(frame) or _has_children():
            signal.default_int_handler(number, frame)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os.write(2, interrupted_message(words).encode())
        os._exit(EXIT_INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(OF_IMPORTS):
            return True
        frame = frame.f_back
    return False


def _has_children() -> bool:
    """Whether this process has started any that it has not seen end."""
    if not hasattr(os, "waitid"):  # macOS with an older Python
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
