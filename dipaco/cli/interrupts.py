"""Ctrl-C: its message for each verb, and the end of a process that is still loading libraries.

Python raises `KeyboardInterrupt` wherever the program is. Inside the imports of NumPy and JAX, the
first seconds of most verbs, that is swallowed, becomes another error, or ends in a segmentation
fault. A process that imports has nothing to clean up except its children, so it ends at once if it
has none.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

EXIT_INTERRUPTED = 130
GO_ON = frozenset(  # commands that continue from the same place if given again
    {
        *("train", "begin", "launch", "ablate", "export", "swarm start"),
        *("worker", "executor", "evaluator", "pretrain"),
    }
)
OF_IMPORTS = "<frozen importlib"  # the file that the frames of an import name


def interrupted_message(words: Sequence[str]) -> str:
    """The message of an interrupted command line."""
    is_batch = any(word.startswith("--batch") for word in words)  # `generate` has it
    goes_on = is_batch or not GO_ON.isdisjoint({words[0], " ".join(words[:2])})
    return f"\nInterrupted.{' The same command goes on from here.' if goes_on else ''}\n"


def end_at_once_in_imports(words: Sequence[str]) -> None:
    """Lets Ctrl-C end the process if it is importing and has no children. Otherwise it raises as
    before. Changes nothing if Ctrl-C is ignored, as in a script's background process.
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
    """True if this process has started others whose end it has not seen."""
    if not hasattr(os, "waitid"):  # macOS with an older Python
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
