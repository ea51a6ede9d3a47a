"""Pages of keys and values, and states: pools for all sessions of a model, with a count of users of each."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from hetero_tvm.errors import CapacityError
from hetero_tvm.generation.facts import LanguageFacts

_ALIGNMENT = 64


class SharedPool(ABC):
    """Pieces of arrays, each with a count of its users.  Memory is taken when a piece is first written to.

    Parameters
    ----------
    count : number of pieces.
    arrays : have a row per piece.
    """

    def __init__(self, count: int, arrays: Sequence[np.ndarray]):
        self.count = count
        self._arrays = arrays
        self._users = np.zeros(count, np.int32)
        self._free = list(range(count - 1, -1, -1))  # pieces that were in use are taken first again
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Number of pieces that nobody uses."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pieces for one user.

        Raises
        ------
        CapacityError : there are not so many; none is taken.
        """
        with self._lock:
            if count > len(self._free):
                raise self._lack(count)
            taken = [self._free.pop() for _ in range(count)]
            self._users[taken] = 1
            return taken

    @abstractmethod
    def _lack(self, count: int) -> CapacityError:
        """The error of a pool that has not so many free pieces."""

    def share(self, pieces: Sequence[int]) -> None:
        """Note one more user of pieces."""
        with self._lock:
            self._users[list(pieces)] += 1

    def give_back(self, pieces: Sequence[int]) -> None:
        """Note one user less; pieces without users are free."""
        with self._lock:
            for piece in pieces:
                self._users[piece] -= 1
                if not self._users[piece]:
                    self._free.append(piece)

    def own(self, piece: int) -> int:
        """``piece`` if it has one user, else a copy of it for one of its users.

        Raises
        ------
        CapacityError : there is none for the copy.
        """
        if self._users[piece] == 1:
            return piece
        copy = self.take(1)[0]
        for array in self._arrays:
            array[copy] = array[piece]
        self.give_back([piece])
        return copy


class PagePool(SharedPool):
    """Pools of keys and values.

    Parameters
    ----------
    pages : number of pages.
    """

    def __init__(self, facts: LanguageFacts, pages: int):
        self.facts = facts
        dtype = np.dtype(facts.cache)
        self.keys, self.values = (_zeros((pages, *shape), dtype) for shape in facts.page_shapes)
        super().__init__(pages, (self.keys, self.values))

    @property
    def pages(self) -> int:
        """Number of pages."""
        return self.count

    def _lack(self, count: int) -> CapacityError:
        page = self.facts.page
        return CapacityError(
            f"the cache is full: {count * page} more tokens are wanted, room is left for "
            f"{self.free * page} of {self.count * page}",
            hint="close sessions, shorten prompts, or load the model with more cache_tokens",
        )


class StatePool(SharedPool):
    """States of texts whose layers keep one, float32 [slots, numbers]: a text takes one slot.

    Parameters
    ----------
    slots : number of them.
    """

    def __init__(self, facts: LanguageFacts, slots: int):
        self.states = _zeros((slots, facts.state), np.dtype(np.float32))
        super().__init__(slots, (self.states,))

    def _lack(self, count: int) -> CapacityError:
        return CapacityError(
            f"there is no room for the state of another text: all {self.count} are in use",
            hint="close or reset sessions",
        )


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Aligned zeros that take no memory yet."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
