"""Pages of keys and values: one pool for all sessions of a model, with a count of users per page."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from hetero_tvm.errors import CapacityError
from hetero_tvm.generation.facts import LanguageFacts

_ALIGNMENT = 64


class PagePool:
    """Pools of keys and values.  Memory is taken from the system when a page is first written to.

    Parameters
    ----------
    pages : number of pages.
    """

    def __init__(self, facts: LanguageFacts, pages: int):
        self.facts, self.pages = facts, pages
        dtype = np.dtype(facts.cache)
        self.keys, self.values = (_zeros((pages, *shape), dtype) for shape in facts.page_shapes)
        self._users = np.zeros(pages, np.int32)
        self._free = list(range(pages - 1, -1, -1))  # pages that were in use are taken first again
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Number of pages that nobody uses."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pages for one user.

        Raises
        ------
        CapacityError : there are not so many; none is taken.
        """
        with self._lock:
            if count > len(self._free):
                page = self.facts.page
                raise CapacityError(
                    f"the cache is full: {count * page} more tokens are wanted, room is left for "
                    f"{len(self._free) * page} of {self.pages * page}",
                    hint="close sessions, shorten prompts, or load the model with more cache_tokens",
                )
            taken = [self._free.pop() for _ in range(count)]
            self._users[taken] = 1
            return taken

    def share(self, pages: Sequence[int]) -> None:
        """Note one more user of pages."""
        with self._lock:
            self._users[list(pages)] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Note one user less; pages without users are free."""
        with self._lock:
            for page in pages:
                self._users[page] -= 1
                if not self._users[page]:
                    self._free.append(page)

    def own(self, page: int) -> int:
        """``page`` if it has one user, else a copy of it for one of its users.

        Raises
        ------
        CapacityError : there is no page for the copy.
        """
        if self._users[page] == 1:
            return page
        copy = self.take(1)[0]
        self.keys[copy], self.values[copy] = self.keys[page], self.values[page]
        self.give_back([page])
        return copy


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Aligned zeros that take no memory yet."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
