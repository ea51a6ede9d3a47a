"""Put the weights of a loaded library on huge pages.

Every inference walks through all weights once.  On 4 KiB pages that is a miss of the translation
caches every 4 KiB, and on a virtual machine each miss walks two page tables: for 90 MB of weights
more than 1% of the time.  Linux gives 2 MiB pages to memory that asks for them (``madvise``).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

VARIABLE = "HETERO_TVM_HUGE_PAGES"
"""Set to 0 to leave the memory as it is."""

_SIZE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_MAPS = Path("/proc/self/maps")

Span = tuple[int, int]
T = TypeVar("T")


def on_huge_pages(load: Callable[[], T]) -> T:
    """Call ``load`` and move the memory that it filled to huge pages, where the kernel allows it.

    Nothing is refused: without the kernel's consent (or with ``HETERO_TVM_HUGE_PAGES=0``) the memory
    stays as it is.
    """
    if os.environ.get(VARIABLE) == "0" or not _MAPS.exists():
        return load()
    before = anonymous(_MAPS.read_text(encoding="utf-8", errors="replace"))
    result = load()
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        for start, end in added(before, anonymous(_MAPS.read_text(encoding="utf-8", errors="replace"))):
            start, end = -(-start // _SIZE) * _SIZE, end // _SIZE * _SIZE
            if start < end:
                for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):  # older kernels know only the first
                    advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
    return result


def anonymous(maps: str) -> list[Span]:
    """Writable private memory without a file behind it, in the text of /proc/self/maps, ascending."""
    spans = []
    for line in maps.splitlines():
        addresses, rights, _, _, inode, *name = line.split()
        if rights == "rw-p" and inode == "0" and (not name or name[0] == "[heap]"):
            start, end = (int(address, 16) for address in addresses.split("-"))
            spans.append((start, end))
    return spans


def added(before: Iterable[Span], after: Iterable[Span]) -> list[Span]:
    """Address ranges in ``after`` but not in ``before`` (a new piece may have joined an older one)."""
    result = []
    old = sorted(before)
    for start, end in after:
        for low, high in old:
            if high <= start or low >= end:
                continue
            if low > start:
                result.append((start, low))
            start = max(start, high)
        if start < end:
            result.append((start, end))
    return result
