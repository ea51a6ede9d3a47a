"""Recognition of nests that are one reduction, and the order in which it reads memory."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, TensorLoad, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.cuda.tensor_program.neighbours import Neighbours
from hetero_tvm.schedules.cuda.tensor_program.plain import widest
from hetero_tvm.schedules.cuda.threads import Combine
from hetero_tvm.schedules.cuda.values import bytes_of
from hetero_tvm.schedules.nests.arg_nest import ArgNest
from hetero_tvm.schedules.nests.nest import (
    Nest,
    Nests,
    loads_of,
    offset,
    substitute,
    unflatten,
)

_COMBINE: dict[type[Expr], Combine] = {
    tirx.Add: operator.add,
    tirx.Mul: operator.mul,
    tirx.Max: tirx.max,
    tirx.Min: tirx.min,
}
LANES = 32
"""Threads side by side where lanes go along the results."""


@dataclass(frozen=True)
class ReductionBlock:
    """Division of a reduction among threads.

    Parameters
    ----------
    threads : along the reduction.
    beside : rows of a block beside each other; 1 where vectors lie along the results.
    splits : parts of the reduction that different blocks work on.
    """

    threads: int
    beside: int
    splits: int

    @property
    def choice(self) -> tuple[int, int, int]:
        """The division as a knob's choice."""
        return self.threads, self.beside, self.splits


@dataclass(frozen=True)
class Reduction:
    """One reduced nest and the way it is computed.

    Parameters
    ----------
    combine, term : the combination, and the terms that it takes in.
    after : the elementwise nest behind the reduction; None when there is none.
    rows : whether vectors lie along the reduction, not along the results.
    width : elements of a vector.
    """

    nest: Nest
    combine: Combine
    term: Expr
    after: Nest | None
    rows: bool
    width: int

    @property
    def dtype(self) -> str:
        """Dtype of partial results."""
        kind = str(self.nest.buffer.dtype)
        return "float32" if kind in ("float16", "bfloat16") else kind

    @property
    def groups(self) -> int:
        """Number of blocks of one split at the narrowest: results, or vectors of them."""
        return self.nest.size if self.rows else -(-self.nest.size // (LANES * self.width))


def reduction_of(nests: Nests) -> Reduction | str:
    """The reduction that the nests are, or the reason why they are none."""
    first, *more = nests.nests
    if isinstance(first, ArgNest):
        return "it reduces pairs of place and value"
    if not first.reduced or len(more) > 1 or any(nest.reduced for nest in more):
        return "it is not one reduction with an elementwise step behind it"
    own = {buffer for buffer in nests.temporary if not buffer.same_as(first.buffer)}
    if own or bool(nests.temporary) != bool(more):
        return "it has more than one intermediate result"
    if bytes_of(str(first.buffer.dtype)) not in (2, 4, 8) or str(first.buffer.dtype) == "bool":
        return f"shuffles exchange no {first.buffer.dtype}"
    combine, term = _combination(first)
    if combine is None:
        return "it combines its terms in another way than sum, product, maximum, minimum"
    after = more[0] if more else None
    if not _starts_neutral(first):
        return "it starts from a value that changes the result"
    if _is_product(first, term):
        return "it is a product, which uses each element of both operands many times"
    if after is not None and not in_place(first, after):
        moved = _in_the_order_of(first, after)
        if moved is None:
            return "the step behind the reduction uses it in another order"
        first, after = moved
        combine, term = _combination(first)
    if after is None and not _is_compact(first):
        return "results are stored in another order than they are computed"
    rows, width = _shape(first, term)
    return Reduction(first, combine, term, after, rows=rows, width=width)


def _combination(nest: Nest) -> tuple[Combine, Expr] | tuple[None, None]:
    """Combination of the nest and its terms; a pair of None where it is none that we know."""
    kind = next((kind for kind in _COMBINE if isinstance(nest.value, kind)), None)
    if kind is not None:
        for own, term in ((nest.value.a, nest.value.b), (nest.value.b, nest.value.a)):
            if isinstance(own, TensorLoad) and own.source.same_as(nest.buffer):
                mentioned = any(load.source.same_as(nest.buffer) for load, _ in loads_of(term))
                return (None, None) if mentioned else (_COMBINE[kind], term)
    return None, None


def _is_product(nest: Nest, term: Expr) -> bool:
    """Whether two operands are smaller than the terms: each is used for many results."""
    sizes = {load.source: math.prod(map(int, load.source.shape)) for load, _ in loads_of(term)}
    return len(sizes) > 1 and max(sizes.values()) * 2 <= nest.size * nest.length and nest.size > 1


def _starts_neutral(nest: Nest) -> bool:
    """Whether many threads may start from the first value: maxima and minima take any."""
    neutral = {tirx.Add: 0, tirx.Mul: 1}
    wanted = next((value for kind, value in neutral.items() if isinstance(nest.value, kind)), None)
    return wanted is None or (
        isinstance(nest.init, tirx.IntImm | tirx.FloatImm) and float(nest.init.value) == wanted
    )


def _is_compact(nest: Nest) -> bool:
    """Whether results are stored in the order in which they are computed."""
    near = Neighbours(nest.size, 1, nest.index_dtype)
    place = substitute(offset(nest.buffer, nest.indices), unflatten(nest.axes, near.base))
    return near.equals(place - near.base, 0) or nest.size == 1


def in_place(first: Nest, after: Nest) -> bool:
    """Whether result r of the reduction is used by result r behind it, and by no other."""
    if first.size != after.size or not _is_compact(after) or not _is_compact(first):
        return False
    near = Neighbours(after.size, 1, after.index_dtype)
    for load, guarded in loads_of(after.value):
        if load.source.same_as(first.buffer):
            place = substitute(offset(load.source, load.indices), unflatten(after.axes, near.base))
            if guarded or not (near.equals(place - near.base, 0) or after.size == 1):
                return False
    return True


def _in_the_order_of(first: Nest, after: Nest) -> tuple[Nest, Nest] | None:
    """The reduction over the axes of the step behind it (an image in blocks of channels, a transpose).

    None when that step uses a result more than once, or one that it may not compute.
    """
    if first.size != after.size or not _is_compact(after):
        return None
    inside = tvm.sym.Analyzer()
    for variable, extent in (*after.axes, *first.reduced):
        inside.bind(variable, tvm.ir.Range(0, extent))
    behind = inside.simplify(after.value)
    uses = [(load, guarded) for load, guarded in loads_of(behind) if load.source.same_as(first.buffer)]
    axes = dict(first.axes)
    if any(guarded for _, guarded in uses) or not all(axis in axes for axis in first.indices):
        return None
    if len({tvm_ffi.structural_hash(load) for load, _ in uses}) != 1:
        return None
    indices = uses[0][0].indices
    values = dict(zip(first.indices, indices, strict=True))
    own = substitute(first.value, values)
    return (
        Nest(after.axes, first.reduced, first.buffer, tuple(indices), inside.simplify(own), first.init),
        dataclasses.replace(after, value=behind),
    )


def _shape(nest: Nest, term: Expr) -> tuple[bool, int]:
    """Whether to read along the reduction, and the elements of a vector."""
    most = widest(Nest(nest.axes, nest.reduced, nest.buffer, nest.indices, term))
    for rows in (True, False):
        width = most
        while width > 1:
            if (nest.length if rows else nest.size) % width == 0 and _fits(nest, term, rows, width):
                return rows, width
            width //= 2
    return moves_along(nest, term), 1


def _fits(nest: Nest, term: Expr, rows: bool, width: int) -> bool:
    """Whether every large operand can be read in vectors of ``width`` elements."""
    near, place = neighbours(nest, rows, width)
    return all(
        not guarded
        and near.step(lambda i, load=load: place(offset(load.source, load.indices), i)) is not None
        for load, guarded in loads_of(term)
        if math.prod(map(int, load.source.shape)) * 4 > nest.size * nest.length
    )


def neighbours(nest: Nest, rows: bool, width: int) -> tuple[Neighbours, Callable[[Expr, Expr], Expr]]:
    """Neighbours along the reduction or along the results, and an expression's value at one of them."""
    extent = nest.length if rows else nest.size
    near = Neighbours(max(1, extent // width), width, nest.index_dtype)
    other = near.bind("other", nest.size if rows else nest.length)

    def place(expression: Expr, index: Expr) -> Expr:
        result, step = (other, index) if rows else (index, other)
        values = {**unflatten(nest.axes, result), **unflatten(nest.reduced, step)}
        return substitute(expression, values)

    return near, place


def moves_along(nest: Nest, term: Expr) -> bool:
    """Whether the largest operand moves less along the last reduced axis than along the last other one."""
    loads = [load for load, _ in loads_of(term)]
    if not nest.axes or not loads:
        return True
    largest = max(loads, key=lambda load: math.prod(map(int, load.source.shape)))
    near = Neighbours(1, 1, nest.index_dtype)
    values = {v: near.bind(v.name, e) for v, e in (*nest.axes, *nest.reduced)}
    last = [variable for variable, extent in nest.axes if extent > 1]
    if not last:
        return True
    place = offset(largest.source, largest.indices)
    moved = substitute(place, {**values, last[-1]: values[last[-1]] + 1}) - substitute(place, values)
    return not near.equals(moved, 1)
