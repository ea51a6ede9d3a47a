"""Axes split where positions are divided by a constant: reshapes, repeated pixels, blocks of pixels.

``x[v // 2]`` over ``v`` is ``x[a]`` over ``a`` and ``b`` with ``v = 2 a + b``: a linear access, without a
division per element.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hetero_tvm.codegen.steps.choice_steps import has_many_choices
from hetero_tvm.codegen.wrapping import wrapping
from hetero_tvm.host.tvm import Expr, TensorLoad, Var, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.nests.growth import nodes_of
from hetero_tvm.schedules.nests.nest import Nest, substitute

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
_MOST_SPLITS = 6
_LARGE = 400
"""Nodes of a value that is not simplified as a whole, like one of many choices within each other: they take
time that doubles with each."""


def with_split_axes(nest: Nest) -> Nest:
    """Map over axes that are divided by nothing, as far as that is possible."""
    nest = _with_axes(nest, nest.axes, {})
    for _ in range(_MOST_SPLITS):
        found = _division(nest)
        if found is None:
            break
        variable, factor = found
        dtype = str(variable.ty.dtype)
        high, low = tirx.Var(variable.name, dtype), tirx.Var(variable.name, dtype)
        axes: list[tuple[Var, int]] = []
        for axis, extent in nest.axes:
            halves = [(high, extent // factor), (low, factor)]
            axes.extend(halves if axis.same_as(variable) else [(axis, extent)])
        nest = _with_axes(nest, tuple(axes), {variable: high * tirx.const(factor, dtype) + low})
    return nest


def _with_axes(nest: Nest, axes: tuple[tuple[Var, int], ...], values: dict[Var, Expr]) -> Nest:
    analyzer = tvm.sym.Analyzer()
    for variable, extent in axes:
        dtype = str(variable.ty.dtype)
        bounds = tvm.ir.Range.from_min_extent(tirx.const(0, dtype), tirx.const(extent, dtype))
        analyzer.bind(variable, bounds)

    def simple(expression: Expr) -> Expr:
        return analyzer.simplify(substitute(expression, values), 3)

    places: dict[Var, Expr] = {}

    def place(index: Expr) -> Expr:
        """``simple(index)``, of a variable once: nested selections read an element a thousand times."""
        if not isinstance(index, tirx.Var):
            return simple(index)
        if index not in places:
            places[index] = simple(index)
        return places[index]

    def placed(load: TensorLoad) -> Expr:
        return tirx.BufferLoad(load.source, [place(index) for index in load.indices])

    indices = tuple(simple(index) for index in nest.indices)
    if nodes_of(nest.value) > _LARGE or has_many_choices(nest.value):
        value = substitute(tvm_ffi.structural_map(nest.value, (TensorLoad, placed)), values)
    else:
        value = simple(wrapping(nest.value))
    return dataclasses.replace(nest, axes=axes, value=value, indices=indices)


def _division(nest: Nest) -> tuple[Var, int] | None:
    """An axis and a number that divides its extent, where its position is divided by that number."""
    extents = dict(nest.axes)
    found: list[tuple[Var, int]] = []

    def visit(division: Any) -> None:
        if not isinstance(division.b, tirx.IntImm):
            return
        factor, variable = int(division.b), division.a
        if isinstance(variable, tirx.Var) and variable in extents:
            extent = extents[variable]
            if 1 < factor < extent and extent % factor == 0:
                found.append((variable, factor))

    tvm_ffi.structural_walk(nest.value, (_DIVISIONS, visit), order="post")
    return min(found, key=lambda pair: pair[1]) if found else None
