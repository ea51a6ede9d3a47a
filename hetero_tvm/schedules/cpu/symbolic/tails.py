"""Parts that kernels for sizes known at run time share: what tells sizes, rows cut into register tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hetero_tvm.host.tvm import Buffer, Expr, Var, tirx, tvm
from hetero_tvm.schedules.emit import Index, Kernel, int32
from hetero_tvm.schedules.symbolic import Witnesses


def narrowed(k: Kernel, variables: Mapping[str, Expr]) -> dict[str, Expr]:
    """int32 values of int64 shape variables, each computed once."""
    return {name: k.let(tirx.Cast("int32", variable)) for name, variable in variables.items()}


def product_of(k: Kernel, extents: Sequence[Expr]) -> Expr:
    """Number of elements along several axes, computed once."""
    size = int32(1)
    for extent in extents:
        size = size * tirx.Cast("int32", extent)
    return k.let(size)


def is_one(extent: Expr) -> bool:
    """Whether an extent is 1 at all sizes."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def is_whole(shape: Sequence[Expr], indices: Sequence[Expr], extents: Mapping[Var, Expr]) -> bool:
    """Whether indices go through all of a buffer, an axis of ``extents`` or a zero for each of its axes.

    What reads or writes a part of it has other steps from row to row than the axes tell.
    """
    analyzer = tvm.sym.Analyzer()

    def along(index: Expr, extent: Expr) -> bool:
        own = extents.get(index) if isinstance(index, Var) else tirx.const(1, "int64")
        return own is not None and analyzer.can_prove_equal(tirx.Cast("int64", own - extent), 0)

    return len(shape) == len(indices) and all(map(along, indices, shape))


def told_sizes(k: Kernel, witnesses: Witnesses, shapes: Sequence[tuple[Index, ...]]) -> None:
    """Declare the arguments that only tell sizes, whose ``shapes`` follow those of the operands."""
    told = witnesses.told[0] if witnesses.told else ()
    for n, ((_, dtype), shape) in enumerate(zip(told, shapes, strict=False)):
        k.argument(f"told{n}", shape, dtype)


def declared(
    k: Kernel, witnesses: Witnesses, variables: Mapping[str, Expr]
) -> tuple[list[Buffer], tuple[Index, ...]]:
    """Declare operands as they come, and what only tells sizes; gives the operands and the result's shape."""
    shapes, inputs = witnesses.shapes(variables), witnesses.largest.inputs
    operands = [k.argument(o.name, shape, o.dtype) for o, shape in zip(inputs, shapes, strict=False)]
    told_sizes(k, witnesses, shapes[len(operands) :])
    return operands, shapes[-1]


def last_rows(k: Kernel, rest: Expr, rows: int, body: Callable[[int], None]) -> None:
    """``body(height)`` for the rows that fill no tile of ``rows``: one nest for each height, none when 0."""

    def between(low: int, high: int) -> None:
        if low == high:
            body(low)
            return
        middle = (low + high) // 2
        k.branch(rest <= middle, lambda: between(low, middle), lambda: between(middle + 1, high))

    if rows > 1:
        with k.when(rest > int32(0)):
            between(1, rows - 1)
