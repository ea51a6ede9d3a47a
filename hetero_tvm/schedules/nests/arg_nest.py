"""Nests that find the place of the largest or smallest value: TVM reduces a pair of place and value."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, SBlock, TensorLoad, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.nests.nest import Axes, Nest, loads_of


@dataclass(frozen=True)
class ArgNest(Nest):
    """``buffer[indices]`` = the first place at which ``value`` is largest, or smallest.

    Parameters
    ----------
    position : the place, an expression of the reduced axes.
    extreme : the buffer that TVM keeps the largest (smallest) value in.
    """

    position: Expr | None = None
    extreme: Buffer | None = None
    largest: bool = True


def arg_nest(block: SBlock, axes: Axes, reduced: Axes) -> ArgNest | None:
    """The nest of a block that reduces pairs of place and value; None for any other block."""
    body = block.body
    if not reduced or not isinstance(body, tirx.SeqStmt) or len(body.seq) != 4:
        return None
    *bound, place, best = body.seq
    if not all(isinstance(s, tirx.Bind) for s in bound):
        return None
    if not all(isinstance(s, tirx.BufferStore) for s in (place, best)):
        return None
    values = {s.var: s.value for s in bound}
    place_value, best_value = (_plain(values.get(_plain(s.value))) for s in (place, best))
    if not all(isinstance(v, tirx.Select) for v in (place_value, best_value)):
        return None
    position, term = (_other(v, s.buffer) for v, s in ((place_value, place), (best_value, best)))
    if position is None or term is None or loads_of(position):
        return None
    if not tvm_ffi.structural_equal(list(place.indices), list(best.indices)):
        return None

    def given(now: int, at: int, new: int, here: int) -> tuple[int, int] | None:
        """Place and value after ``value new at here`` meets ``value now at at``."""

        def number(expression: Expr) -> Expr:
            if tvm_ffi.structural_equal(expression, term):
                return tirx.const(new, str(term.ty.dtype))
            if tvm_ffi.structural_equal(expression, position):
                return tirx.const(here, str(position.ty.dtype))
            if isinstance(expression, TensorLoad) and expression.source.same_as(place.buffer):
                return tirx.const(at, str(place.buffer.dtype))
            if isinstance(expression, TensorLoad) and expression.source.same_as(best.buffer):
                return tirx.const(now, str(best.buffer.dtype))
            return expression

        found = []
        for value in (place_value, best_value):
            made = tvm_ffi.structural_map(value, (tvm.ir.Expr, number), order="pre")
            made = tvm.sym.Analyzer().simplify(made)
            if not isinstance(made, tirx.IntImm | tirx.FloatImm):
                return None
            found.append(int(made.value))
        return found[0], found[1]

    # Recognised by what it computes, not by how it is written: better, worse, the same before and behind.
    cases = ((1, 5, 2, 9), (2, 5, 1, 9), (1, 5, 1, 9), (1, 9, 1, 5))
    found = [given(*case) for case in cases]
    if found == [(9, 2), (5, 2), (5, 1), (5, 1)]:
        largest = True
    elif found == [(5, 1), (9, 1), (5, 1), (5, 1)]:
        largest = False
    else:
        return None
    return ArgNest(
        axes,
        reduced,
        place.buffer,
        tuple(place.indices),
        term,
        position=position,
        extreme=best.buffer,
        largest=largest,
    )


def _other(select: Expr, own: Buffer) -> Expr | None:
    """The side of a choice that is not the old value of ``own``; None when there is no such pair of sides."""
    sides = [_plain(side) for side in (select.true_value, select.false_value)]
    mine = [isinstance(side, TensorLoad) and side.source.same_as(own) for side in sides]
    return sides[mine.index(False)] if sum(mine) == 1 else None


def _plain(expression: Expr) -> Expr:
    """The expression below the casts of a place to other integer types."""
    while isinstance(expression, tirx.Cast) and "int" in str(expression.ty.dtype):
        expression = expression.value
    return expression
