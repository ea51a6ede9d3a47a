"""Nests of loops over one expression each, as the spaces of generic kernels rewrite them.

A nest's axes are taken as one flat index, and every load as an element of flat memory, so that contiguity,
alignment and uniformity of neighbouring elements can be proved whatever the shapes are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, TensorLoad, Var, tirx, tvm, tvm_ffi

Axes = tuple[tuple[Var, int], ...]
"""Variables and their extents, the outermost first."""


@dataclass(frozen=True)
class Nest:
    """``buffer[indices] = value`` over ``axes``, or combined over ``reduced`` from ``init`` on."""

    axes: Axes
    reduced: Axes
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None = None

    @property
    def size(self) -> int:
        """Number of results."""
        return math.prod(extent for _, extent in self.axes)

    @property
    def length(self) -> int:
        """Terms of one reduction."""
        return math.prod(extent for _, extent in self.reduced)

    @property
    def index_dtype(self) -> str:
        """Dtype of the axes."""
        return str((self.axes or self.reduced)[0][0].ty.dtype) if self.axes or self.reduced else "int32"


@dataclass(frozen=True)
class Nests:
    """A function as nests in order; buffers that are neither inputs nor outputs are ``temporary``."""

    function: PrimFunc
    nests: tuple[Nest, ...]
    temporary: tuple[Buffer, ...]

    @property
    def empty(self) -> bool:
        """Whether a nest has no results, or no terms to reduce."""
        return any(nest.size * nest.length == 0 for nest in self.nests)

    @property
    def results(self) -> tuple[Buffer, ...]:
        """The parameters that are written."""
        written = {nest.buffer for nest in self.nests}
        return tuple(buffer for buffer in self.function.params if buffer in written)


def substitute(expression: Expr, values: Mapping[Var, Expr]) -> Expr:
    """The expression with variables replaced."""

    def value(variable: Var) -> Expr:
        return values.get(variable, variable)

    return tvm_ffi.structural_map(expression, (tvm.ir.Var, value))


def unflatten(axes: Axes, index: Expr) -> dict[Var, Expr]:
    """The value of each axis at a flat index."""
    values, below = {}, 1
    for position in range(len(axes) - 1, -1, -1):
        variable, extent = axes[position]
        if extent == 1:
            values[variable] = tirx.const(0, str(variable.ty.dtype))
            continue
        place = tirx.floordiv(index, below) if below > 1 else index
        outermost = all(e == 1 for _, e in axes[:position])
        values[variable] = place if outermost else tirx.floormod(place, extent)
        below *= extent
    return values


def offset(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Flat index of an element of a compact buffer."""
    place: Expr | None = None
    for extent, index in zip(buffer.shape, indices, strict=True):
        place = index if place is None else place * int(extent) + index
    return tirx.const(0, "int32") if place is None else place


def loads_of(expression: Expr) -> list[tuple[TensorLoad, bool]]:
    """The loads of an expression, each with whether only a condition leads to it."""
    found: list[tuple[TensorLoad, bool]] = []

    def visit(node: Expr, guarded: bool) -> None:
        if isinstance(node, TensorLoad):
            found.append((node, guarded))
            for index in node.indices:
                visit(index, guarded)
            return
        if is_conditional(node):
            visit(node.args[0], guarded)
            for branch in node.args[1:]:
                visit(branch, True)
            return
        for child in _children(node):
            visit(child, guarded)

    visit(expression, False)
    return found


def is_conditional(node: Expr) -> bool:
    """Whether only one of two values is computed (``Select`` computes both)."""
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "prim.if_then_else"


def _children(node: Expr) -> list[Expr]:
    """Expressions that an expression is made of."""
    if isinstance(node, tvm.ir.Call):
        return list(node.args)
    names = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride")
    return [child for name in names if (child := getattr(node, name, None)) is not None]
