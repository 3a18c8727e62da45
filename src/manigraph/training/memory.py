"""Memory that training gives back and asks for again in every step."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Numbers of glibc's `mallopt`."""
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for its next tensors, instead of giving it back to the system.

    Layers free and allocate the same tensors in every step. By default the GNU C library returns all that are
    larger than 32 MiB, and what lies free at the end of its memory; the system then hands them out anew, one
    cleared page of 4 KiB at a time. The numbers that are computed stay the same.

    Returns:
        Whether the C library can do that; others are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not the GNU C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
