"""Writes to a state: results that are the state with some of its elements changed.

Programs with a static cache write the rows of new tokens at places that they compute, by a scatter or by a
selection; axes may be in another order meanwhile::

    present = scatter_nd(past, places, new)
    present = permute(scatter_nd(permute(past), places, new))
    present = where(position == place, new, past)
    present = scatter_elements(concat(past, zeros), places, new)

As functions they copy the state.  The kernels here change what is new, in the memory that the state lies in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Var, relax, tirx, tvm
from hetero_tvm.relax_passes.rewriting.graph import dtype_of, shape_of
from hetero_tvm.relax_passes.storage.written_over import PLACES, WRITES_OVER
from hetero_tvm.schedules.emit import Kernel, for_graph, int32

_MOST_ELEMENTS = 1 << 31
"""Elements of a tensor whose positions int32 still counts."""

Values = Mapping[Var, Expr]
"""Value of each variable of a function."""


@dataclass(frozen=True)
class Write:
    """A result that is a state with elements changed.

    Parameters
    ----------
    written : variable of the write.
    axes : the state's axis for each axis of ``written``.
    operands : of the kernel, behind the state.
    kernel : makes it for memory of some shape, at whose front the state lies.
    """

    written: Var
    axes: tuple[int, ...]
    operands: tuple[Expr, ...]
    kernel: Callable[[Sequence[int]], PrimFunc]


def write_of(past: Var, present: Var, values: Values) -> Write | None:
    """The write that makes ``present`` of the state ``past``; None where it is anything else."""
    shape = shape_of(past)
    written, axes = present, tuple(range(len(shape)))
    if _named(values.get(present)) == "relax.permute_dims":
        back = _permutation(values[present])
        written, axes = values[present].args[0], tuple(back.index(n) for n in range(len(back)))
    value = values.get(written)

    def is_state(expr: Expr) -> bool:
        given = values.get(expr) if isinstance(expr, relax.Var) else None
        if _named(given) == "relax.permute_dims":
            return given.args[0].same_as(past) and tuple(_permutation(given)) == axes
        return expr.same_as(past) and axes == tuple(range(len(axes)))

    if not shape or not 0 < math.prod(shape) < _MOST_ELEMENTS or not isinstance(written, relax.Var):
        return None
    name, dtype = _named(value), dtype_of(past)
    if name == "relax.where":
        mask, *sides = value.args
        if is_state(sides[0]) == is_state(sides[1]):
            return None
        new, wanted = (sides[1], False) if is_state(sides[0]) else (sides[0], True)
        shapes = [shape_of(x) for x in (mask, new)]
        return Write(
            written,
            axes,
            (mask, new),
            lambda memory: _selection(memory, shape, dtype, axes, shapes, dtype_of(mask), wanted),
        )
    if name not in ("relax.scatter_nd", "relax.scatter_elements"):
        return None
    data, places, updates = value.args
    if not is_state(data) or str(value.attrs.reduction) != "update":
        return None
    given = [shape_of(x) for x in (places, updates)]
    if not all(map(math.prod, given)):
        return None
    axis = int(value.attrs.axis) % len(shape) if name == "relax.scatter_elements" else None
    return Write(
        written,
        axes,
        (places, updates),
        lambda memory: _scatter(memory, shape, dtype, axes, given, dtype_of(places), axis),
    )


def _named(value: Expr | None) -> str:
    return getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""


def _permutation(call: Any) -> list[int]:
    rank = len(shape_of(call.args[0]))
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]


def _scatter(
    memory: Sequence[int],
    shape: Sequence[int],
    dtype: str,
    axes: Sequence[int],
    given: Sequence[Sequence[int]],
    index_dtype: str,
    axis: int | None,
) -> PrimFunc:
    """Kernel of the state, places and updates: as ``scatter_elements`` along ``axis``, or as ``scatter_nd``.

    Places must have been checked; one beyond an axis would be its nearest end.  Those of ``scatter_elements``
    may count from the end, while the importer has made others count from the beginning.
    """
    places_shape, updates_shape = given
    depth = places_shape[-1] if axis is None else 1
    several = len(places_shape) - 1 if axis is None else len(places_shape)
    extents = [shape[axes[n]] for n in (range(depth) if axis is None else (axis,))]
    k = Kernel("write")
    with k:
        k.argument("state", memory, dtype)
        places = k.argument("places", places_shape, index_dtype)
        updates, out = k.argument("new", updates_shape, dtype), k.argument("out", memory, dtype)
        with ExitStack() as stack:
            outer = [stack.enter_context(k.serial(extent)) for extent in updates_shape[:several]]

            def place(n: int) -> Expr:
                index = tirx.Cast("int32", places[tuple([*outer, int32(n)] if axis is None else outer)])
                index = tirx.Select(index < 0, index + extents[n], index)
                return k.let(tirx.min(tirx.max(index, 0), int32(extents[n] - 1)))

            at = [place(n) for n in range(depth)]
            inner = [stack.enter_context(k.serial(extent)) for extent in updates_shape[several:]]
            if axis is None:
                to = [*at, *inner]
            else:
                to = [at[0] if n == axis else loop for n, loop in enumerate(outer)]
            k.store(out, updates[tuple([*outer, *inner])], _in_order(to, axes))
    ranges = [value for extent in extents for value in (0 if axis is None else -extent, extent)]
    return _over_state(k).with_attr(PLACES, [1, *ranges])


def _selection(
    memory: Sequence[int],
    shape: Sequence[int],
    dtype: str,
    axes: Sequence[int],
    given: Sequence[Sequence[int]],
    mask_dtype: str,
    wanted: bool,
) -> PrimFunc:
    """Kernel of the state, a mask and new elements, which are taken where the mask is ``wanted``.

    Loops over the mask's own axes are outside: each of its elements is read once.
    """
    whole = [shape[axis] for axis in axes]
    k = Kernel("write")
    with k:
        k.argument("state", memory, dtype)
        mask, new = k.argument("mask", given[0], mask_dtype), k.argument("new", given[1], dtype)
        out = k.argument("out", memory, dtype)
        loops: list[Any] = [int32(0)] * len(whole)
        mask_shape = (1,) * (len(whole) - len(given[0])) + tuple(given[0])

        def element(x: Buffer) -> Expr:
            """The element that broadcasts to where the loops are."""
            own = loops[len(loops) - len(x.shape) :]
            at = [int32(0) if int(n) == 1 else loop for n, loop in zip(x.shape, own, strict=True)]
            return x[tuple(at)]

        def write() -> None:
            with ExitStack() as inner:
                for n, extent in enumerate(whole):
                    if mask_shape[n] == 1:
                        loops[n] = inner.enter_context(k.serial(extent))
                k.store(out, element(new), _in_order(loops, axes))

        with ExitStack() as outer:
            for n, extent in enumerate(mask_shape):
                if extent > 1:
                    loops[n] = outer.enter_context(k.serial(extent))
            chosen = element(mask)
            k.branch(chosen if wanted else tirx.Not(chosen), write)
    return _over_state(k)


def _in_order(places: Sequence[Expr], axes: Sequence[int]) -> list[Expr]:
    """Indices of the state from those of the write."""
    return [places[axes.index(n)] for n in range(len(axes))]


def _over_state(k: Kernel) -> PrimFunc:
    return for_graph(k.function).with_attr(WRITES_OVER, 0)
