"""Runs a command that receives SIGTERM when the process that started it dies.

    python -m dipaco.launch.parent_death PARENT COMMAND ...

Ray kills an actor without notice. Its child would go on and hold devices that Ray gives to others.
Linux keeps the setting over `exec` (prctl(2), PR_SET_PDEATHSIG). Other systems have none.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        # SIGTERM rather than SIGKILL, so that a worker saves its phase part-way.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit("The process that started this one is gone.")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
