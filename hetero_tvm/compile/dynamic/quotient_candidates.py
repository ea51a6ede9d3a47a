"""Whole quotients that an extent of a model may have in it, as far as is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.runtime.signature import quotient_parts
from hetero_tvm.schedules.extents import Extent, ordered, quotient


@dataclass(frozen=True)
class Candidate:
    """``times * ((many * of + plus)//divisor)``, with ``plus`` between two: all agree with what is known."""

    of: Extent
    many: int
    times: int
    divisor: int
    least: int
    most: int

    def values(self, base: np.ndarray, plus: int) -> np.ndarray:
        """Values of the candidate at these values of ``of``, but for a number that is added."""
        return self.times * ((self.many * base + plus) // self.divisor)

    def name(self, plus: int) -> Extent:
        """The quotient itself, as an extent."""
        inside = {names: self.many * factor for names, factor in self.of.terms}
        inside[()] = inside.get((), 0) + plus
        return quotient(ordered(inside), self.divisor)


def quotient_in(extent: Extent) -> str:
    """Name of the first quotient of a polynomial."""
    return next(name for names, _ in extent.terms for name in names if quotient_parts(name) is not None)
