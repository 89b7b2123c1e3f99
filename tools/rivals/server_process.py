"""A server of a rival as a process: started, waited for, held while others are measured, ended."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.cpu_seconds import cpu_seconds_of

LAST_LINES = 12  # characters of a log that are shown


class ServerFailed(Exception):
    """A server did not start."""


class ServerProcess:
    """A server in a separate process group.

    Args:
      words: its command.
      variables: added to its environment.
      url: where it will answer.
      ready: path of it that is answered with 200 when it is ready.
      log: file for what it prints.
    """

    def __init__(
        self, words: Sequence[str], variables: Mapping[str, str], url: str, ready: str, log: Path
    ):
        self.url, self._ready, self._log = url, ready, log
        with log.open("w") as out:
            self._process = subprocess.Popen(
                list(words),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=os.environ | dict(variables),
                start_new_session=True,
            )

    def wait_until_ready(self, limit_seconds: float) -> None:
        """Returns when it answers.

        Raises:
          ServerFailed: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + limit_seconds
        while True:
            with (
                contextlib.suppress(OSError),  # one of urllib's, too
                urllib.request.urlopen(self.url + self._ready, timeout=5) as answer,
            ):
                if answer.status == 200:
                    return
            if self._process.poll() is not None:
                code = self._process.returncode
                raise ServerFailed(f"it ended with exit code {code}:\n{last_lines(self._log)}")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"it was not ready after {limit_seconds:.0f} s (--start-seconds):\n"
                    f"{last_lines(self._log)}"
                )
            time.sleep(0.1)

    def hold(self) -> None:
        """It does nothing until it may go on: an idle server may poll, which costs the others."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Processor time of it and its children so far."""
        return cpu_seconds_of(self._process.pid)

    def stop(self) -> None:
        end_group(self._process)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def last_lines(log: Path) -> str:
    """The end of a log, indented."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])


def end_group(process: subprocess.Popen, grace_seconds: float = 20) -> None:
    """Ends a process and all that it started, which form a group, even if it is held."""

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    send(signal.SIGTERM)
    send(signal.SIGCONT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_seconds)
    send(signal.SIGKILL)  # Some of its children may still run.
    process.wait()
