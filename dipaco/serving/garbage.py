"""Garbage collection in a process that serves.

JAX and compiled programs are half a million objects that refer to others. Python's collector looks
at all of them every few thousand requests, and every thread waits meanwhile: 0.5 s each time. They
stay until the process ends, so nothing is lost where it passes over them.
"""

import gc


def keep_what_there_is() -> None:
    """From now on collections look only at what comes later. For a process that only serves, once
    its programs are compiled.
    """
    gc.collect()
    gc.freeze()
