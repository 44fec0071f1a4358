"""Keeps freed memory in the process: training on a CPU allocates it again a moment later."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed blocks; returns whether the settings were accepted.

    By default every tensor of more than a few megabytes is mapped again and its pages are zeroed one fault at
    a time, which costs several percent of a training step. It is a setting of the whole process, so
    only the command line changes it, never the library.
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
