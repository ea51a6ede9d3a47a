"""What the compiler can be told to leave out, to measure what it is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """All are on unless someone measures.

    Parameters
    ----------
    double_buffering : tiles exist several times, so that they are filled while others are used, and
        kernels have parts of the scratchpads of their own.
    fusion : results stay on chip between kernels, and what follows a product is in its kernel; without,
        every result goes through DRAM, and every step behind a product is a kernel of its own.
    """

    double_buffering: bool = True
    fusion: bool = True


ALL = Features()
