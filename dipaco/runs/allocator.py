"""Makes glibc keep freed memory, for steps on CPU.

XLA allocates a step's scratch memory at every step (130 MB for the quickstart's model), and glibc
returns blocks of that size to the system, which must then clear every page again: 32,000 page
faults and a third of a step's CPU time in the kernel. Kept, it is 3,000 and a twentieth. A step of
a large model needs gigabytes, so nothing is returned within a task. What a task leaves is returned
at its end if it is that large. Changes no result."""

import ctypes
import sys

KEPT_BYTES = 2 << 30  # Less is kept from task to task.
# Numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2.split())


def keep_freed_memory() -> None:
    """Must be called before threads start. Does nothing without glibc."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, 1)  # other arenas cannot hold blocks of this size
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, -1)  # never
        library.mallopt(_M_TOP_PAD, 64 << 20)


def return_freed_memory() -> None:
    """Returns freed memory to the system, unless it is little. Does nothing without glibc."""
    if (library := _glibc()) is not None and library.mallinfo2().fordblks > KEPT_BYTES:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if library is None or not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo2
    return library
