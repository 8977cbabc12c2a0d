"""Keeps the memory of freed tensors for the next ones."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Options of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_TRIM, _LARGEST_MMAP = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> bool:
    """Makes the C library reuse freed memory instead of returning it to the operating system.

    An update allocates and frees several megabytes of hidden units and gradients. Depending on what
    else is on the heap, glibc returns them each time, and the next update faults on every page:
    its critic update then takes up to twice as long. Blocks above 32 MiB are still returned. Other
    C libraries are left as they are.

    Returns:
        whether the options were set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # Both, because setting one of them turns off the automatic adjustment of the other.
    options = {_MMAP_THRESHOLD: _LARGEST_MMAP, _TRIM_THRESHOLD: _LARGEST_TRIM}
    return all([mallopt(option, value) == 1 for option, value in options.items()])
