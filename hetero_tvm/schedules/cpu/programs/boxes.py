"""Nests cut where their conditions change: joins, borders and mirrored edges become plain copies.

A concatenation asks for each element which operand it is of, a border whether it is within; both ask for
positions on one axis.  Cut there, each box of the result is an expression without conditions.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from hetero_tvm.codegen.wrapping import wrapping
from hetero_tvm.host.tvm import Expr, Var, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.nests.nest import Nest, substitute

_MOST_BOXES = 64
_MOST_PARTS = 256
"""Most boxes along one axis: a join of many operands would else ask of each element where it comes from."""

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Min, tirx.Max)


def boxes_of(nest: Nest) -> tuple[Nest, ...]:
    """Nests that together compute a map, the innermost axis cut last; ``nest`` alone where nothing is cut."""
    if nest.reduced:
        return (nest,)
    cuts: dict[Var, set[int]] = {variable: {0, extent} for variable, extent in nest.axes}

    def visit(comparison: Any) -> None:
        for variable, place in _changes(comparison, list(cuts)):
            if 0 < place < max(cuts[variable]):
                cuts[variable].add(place)

    tvm_ffi.structural_walk(nest.value, (_COMPARISONS, visit))
    pieces = [list(itertools.pairwise(sorted(cuts[variable]))) for variable, _ in nest.axes]
    most = _MOST_PARTS if sum(len(piece) > 1 for piece in pieces) == 1 else _MOST_BOXES
    boxes = list(itertools.islice(itertools.product(*pieces), most + 1))
    if len(boxes) == 1 or len(boxes) > most:
        return (nest,)
    wrapped = dataclasses.replace(nest, value=wrapping(nest.value))
    return tuple(_box(wrapped, box) for box in boxes)


def _box(nest: Nest, box: tuple[tuple[int, int], ...]) -> Nest:
    axes, values, analyzer = [], {}, tvm.sym.Analyzer()
    for (variable, _), (first, end) in zip(nest.axes, box, strict=True):
        dtype = str(variable.ty.dtype)
        fresh = tirx.Var(variable.name, dtype)
        zero, extent = tirx.const(0, dtype), tirx.const(end - first, dtype)
        analyzer.bind(fresh, tvm.ir.Range.from_min_extent(zero, extent))
        axes.append((fresh, end - first))
        values[variable] = fresh + tirx.const(first, dtype)

    def simple(expression: Expr) -> Expr:
        return analyzer.simplify(substitute(expression, values))

    indices = tuple(simple(index) for index in nest.indices)
    return dataclasses.replace(nest, axes=tuple(axes), value=simple(nest.value), indices=indices)


def _changes(node: Any, variables: list[Var]) -> list[tuple[Var, int]]:
    """Positions of one axis at which a comparison of it with a constant changes."""
    # Positions are signed; of unsigned constants TVM makes no difference below 0.
    if not str(node.a.ty.dtype).startswith("int"):
        return []
    used = [v for v in tirx.analysis.undefined_vars(node) if v in variables]
    if len(used) != 1:
        return []
    found = tvm.sym.detect_linear_equation(node.a - node.b, used)
    found = [tvm.sym.Analyzer().simplify(value) for value in found]
    if len(found) != 2 or not all(isinstance(value, tirx.IntImm) for value in found):
        return []
    step, base = (int(value) for value in found)
    if step == 0:
        return []
    # a - b = step * position + base, which is zero at -base / step.
    at, above = (
        -(base // step),
        (-base) // step + 1,
    )  # the first position not below zero's, and the first above
    if isinstance(node, tirx.EQ | tirx.NE):
        return [(used[0], at), (used[0], above)]
    strict = isinstance(node, tirx.LT | tirx.GE | tirx.Min | tirx.Max)
    return [(used[0], at if strict == (step > 0) else above)]
