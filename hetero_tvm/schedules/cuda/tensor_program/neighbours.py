"""Proofs about neighbouring elements of a flat index: contiguity, alignment, uniform conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hetero_tvm.host.tvm import Expr, TensorLoad, Var, tirx, tvm
from hetero_tvm.schedules.nests.nest import loads_of


class Neighbours:
    """Neighbours of a flat index, ``base * width + e`` for e below ``width``, and proofs about them."""

    def __init__(self, groups: int, width: int, dtype: str):
        self.width, self.dtype = width, dtype
        self.base = tvm.ir.Var("base", tvm.ir.PrimType(dtype))
        self._analyzer = tvm.sym.Analyzer()
        self._analyzer.bind(self.base, tvm.ir.Range(0, max(1, groups)))

    def bind(self, name: str, extent: int) -> Var:
        """Another variable, of which ``0 <= variable < extent`` is known."""
        variable = tvm.ir.Var(name, tvm.ir.PrimType(self.dtype))
        self._analyzer.bind(variable, tvm.ir.Range(0, max(1, extent)))
        return variable

    def at(self, e: int) -> Expr:
        """Index of neighbour ``e``."""
        return self.base * self.width + e

    def step(self, place: Callable[[Expr], Expr]) -> int | None:
        """0 or 1 where ``place(index)`` is the same, or grows by one, from neighbour to neighbour; a
        growing one starts at a multiple of the width.  None otherwise."""
        index = tvm.ir.Var("index", tvm.ir.PrimType(self.dtype))
        motion = _motion(place(index), index, self.width)
        if motion[0] == 0 or motion == (1, True):
            return motion[0]
        first = place(self.at(0))
        found = {self._difference(place(self.at(e)), first, e) for e in range(1, self.width)}
        if found == {0} or self.width == 1:
            return 0
        if found == {1}:
            return 1 if self._is_multiple(first) else None
        return None

    def _difference(self, here: Expr, first: Expr, e: int) -> int | None:
        value = self._analyzer.simplify(here - first)
        if not isinstance(value, tirx.IntImm):
            return None
        return {0: 0, e: 1}.get(int(value))

    def uniform(self, condition: Expr, at: Callable[[Expr, Expr], Expr]) -> bool:
        """Whether a condition is the same for all neighbours; ``at(expression, index)`` is an expression of
        the nest's axes at a flat index."""
        if isinstance(condition, tirx.And | tirx.Or):
            return self.uniform(condition.a, at) and self.uniform(condition.b, at)
        if isinstance(condition, tirx.Not):
            return self.uniform(condition.a, at)
        if isinstance(condition, tirx.GT | tirx.GE):
            swapped = tirx.LT if isinstance(condition, tirx.GT) else tirx.LE
            return self.uniform(swapped(condition.b, condition.a), at)
        if not isinstance(condition, tirx.LT | tirx.LE | tirx.EQ | tirx.NE):
            return not loads_of(condition) and not tirx.analysis.undefined_vars(condition)
        left, right = (self.step(lambda i, side=side: at(side, i)) for side in (condition.a, condition.b))
        if (left, right) == (0, 0):
            return True
        if isinstance(condition, tirx.EQ | tirx.NE):
            return False
        # Between g + e and a bound: the same on the same side of a multiple of the width.
        strict = isinstance(condition, tirx.LT)
        if (left, right) == (1, 0):
            return self._is_multiple(at(condition.b + (0 if strict else 1), self.at(0)))
        if (left, right) == (0, 1):
            return self._is_multiple(at(condition.a + (1 if strict else 0), self.at(0)))
        return False

    @contextmanager
    def assuming(self, condition: Expr) -> Iterator[None]:
        """Open while a condition of ``base`` is known to hold."""
        with self._analyzer.constraint_scope(condition):
            yield

    def equals(self, value: Expr, number: int) -> bool:
        """Whether ``value`` is proved to be ``number``."""
        value = self._analyzer.simplify(value)
        return isinstance(value, tirx.IntImm) and int(value) == number

    def _is_multiple(self, value: Expr) -> bool:
        return self.equals(tirx.floormod(value, self.width), 0)


def _motion(place: Expr, index: Var, width: int) -> tuple[int | None, bool]:
    """Step of a place from neighbour to neighbour (None: unknown), and whether it is a multiple of ``width``
    where ``index`` is.

    Carries whole vectors through quotients and remainders by multiples of the width, which they never
    straddle; what this misses is left to the analyzer.
    """
    if place.same_as(index):
        return 1, True
    if isinstance(place, tirx.IntImm):
        return 0, int(place) % width == 0
    if isinstance(place, tirx.Cast):
        return _motion(place.value, index, width)
    if isinstance(place, TensorLoad):
        still = all(_motion(at, index, width)[0] == 0 for at in place.indices)
        return (0 if still else None), False
    if not isinstance(place, tirx.Add | tirx.Sub | tirx.Mul | tirx.FloorDiv | tirx.FloorMod):
        moves = not isinstance(place, tirx.Var) and index in tirx.analysis.undefined_vars(place)
        return (None if moves else 0), False
    (a, a_whole), (b, b_whole) = (_motion(side, index, width) for side in (place.a, place.b))
    if a is None or b is None:
        return None, False
    if isinstance(place, tirx.Mul):
        factor = next((int(side) for side in (place.a, place.b) if isinstance(side, tirx.IntImm)), None)
        step = 0 if a == b == 0 else None if factor is None else (a or b) * factor
        return step, a_whole or b_whole
    if isinstance(place, tirx.Add | tirx.Sub):
        return (a + b if isinstance(place, tirx.Add) else a - b), a_whole and b_whole
    whole = isinstance(place.b, tirx.IntImm) and b_whole and a_whole
    remainder = isinstance(place, tirx.FloorMod)
    if a == b == 0:
        return 0, remainder and whole
    return ((1, True) if remainder else (0, False)) if whole and a == 1 and b == 0 else (None, False)
