"""Memory of the page process: two heaps for all threads.

The C library gives busy threads heaps of their own, up to eight a core, and freed memory stays in its heap. Requests
run in many threads, and each works on arrays with one entry per item, so the heaps add up. At a million items the limit
saves 35 MB on two cores.
"""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8  # of glibc's malloc.h
HEAPS = 2


def limit_heaps() -> bool:
    """Limit the heaps of this process; False where the C library is another one. Before threads are started."""
    try:
        return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS))
    except (AttributeError, OSError, TypeError):
        return False
