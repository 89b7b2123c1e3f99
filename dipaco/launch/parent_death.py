"""Becomes another program, which is told to end when the process that started it dies.

    python -m dipaco.launch.parent_death PARENT COMMAND ...

Ray ends an actor without asking; its child would go on, and hold devices that Ray gives to others.
Linux keeps the wish over `exec` (prctl(2), PR_SET_PDEATHSIG); elsewhere nothing holds the child.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        # In order: the phase in hand is saved part-way, where the machine still lives.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit("The process that started this one is gone.")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
