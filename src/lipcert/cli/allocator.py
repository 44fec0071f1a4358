"""Keeps freed memory in the process, which training on a CPU asks for again a moment later."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Tell glibc not to hand freed blocks back to the system; returns whether it took the advice.

    By default every tensor of more than a few megabytes is mapped again and its pages are zeroed one fault at
    a time, which costs several percent of a training step. It is a setting of the whole process, so
    that only the command line makes it, never the library.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(
        mallopt(option, value) == 1
        for option, value in ((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 1 << 30), (_TOP_PAD, 64 << 20))
    )
