"""The command `dipaco`: `main.py`, with Ctrl-C in order from the first of its imports on."""

import sys

from dipaco.cli.interrupts import end_at_once_in_imports


def main() -> int:
    """Runs `main.main` with the arguments of the command line."""
    if words := sys.argv[1:]:
        end_at_once_in_imports(words)
    from dipaco.cli.main import main as run

    return run()
