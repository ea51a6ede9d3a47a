"""Terms of all pairs of rows of two tensors, combined along them, the sizes known at run time.

The loops are those of products (``batch_matmul.py``), what they combine is that of ``products/terms.py``:
distances between all pairs of rows, einsums of two operands that are computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Schedule, TensorLoad, Var, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.products.terms import COMBINED, loads_in, of_vectors, start_of
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, Terms
from hetero_tvm.schedules.cpu.symbolic.batch_matmul import RunTimeProducts
from hetero_tvm.schedules.cpu.symbolic.reductions import follower_of
from hetero_tvm.schedules.cpu.symbolic.tails import is_one, is_whole
from hetero_tvm.schedules.emit import Index, as_index, int32

_UNROLL = 4
_WIDE, _NARROW = RegisterTile(6, 2), RegisterTile(4, 2)
"""Register tiles with 32 registers, and with 16."""


@dataclass(frozen=True)
class _Form:
    """A function that combines terms of pairs of rows.

    Attributes
    ----------
    value, combine, init : the term; how terms are combined, and what with.
    left, right : the loads of A, which has the rows of results, and of B, which has their columns.
    others : loads of single numbers, and of vectors along the reduction.
    lead, row, column, along : axes of the products, of rows and columns of results, and of the reduction.
    """

    value: Expr
    combine: type
    init: float
    left: TensorLoad
    right: TensorLoad
    others: Sequence[TensorLoad]
    lead: Sequence[Var]
    row: Var
    column: Var
    along: Var
    extents: Mapping[Var, Expr]
    places: Sequence[Expr]
    """Indices of a result."""
    after: Callable[[Expr], Expr] | None
    """Function that each result goes through."""


def pairs_kernel(function: PrimFunc, sch: Schedule, machine: CpuModel, work: int) -> PrimFunc | None:
    """The kernel of a function that combines terms of pairs; None for any other.

    ``work`` is the number of terms at the largest sizes.
    """
    form = _form_of(function, sch)
    return None if form is None else _PairsKernel(function, form, machine).emit(work)


def _form_of(function: PrimFunc, sch: Schedule) -> _Form | None:
    blocks = [sch.get(block) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if len(blocks) not in (1, 2) or any(not isinstance(one.body, tirx.BufferStore) for one in blocks):
        return None
    block, *behind = blocks
    store, (*given, result) = block.body, function.params
    if not isinstance(block.init, tirx.BufferStore) or type(store.value) not in COMBINED:
        return None
    sides = [store.value.a, store.value.b]
    own = [isinstance(side, TensorLoad) and side.source.same_as(store.buffer) for side in sides]
    init = block.init.value
    if sum(own) != 1 or not isinstance(init, tirx.FloatImm):
        return None
    value = sides[own.index(False)]
    loads = loads_in(value)
    if loads is None or any(load.source not in given for load in loads):
        return None
    dtypes = {str(buffer.dtype) for buffer in (*given, store.buffer)}
    axes = {axis.var: axis for axis in block.iter_vars}
    extents = {v: axis.dom.extent for v, axis in axes.items()}
    accesses = [*((load.source, load.indices) for load in loads), (store.buffer, store.indices)]
    plain = all(is_whole(buffer.shape, indices, extents) for buffer, indices in accesses)
    if not plain or dtypes not in ({"float32"}, {"float64"}):
        return None
    wide = [v for v in axes if not is_one(extents[v])]
    reduced = [v for v in wide if int(axes[v].iter_type) == tirx.IterVar.CommReduce]
    kept = [index for index in store.indices if isinstance(index, Var) and index in wide]
    matrices = [load for load in loads if _of(load, kept)]
    others = [load for load in loads if not _of(load, kept)]
    if len(reduced) != 1 or len(matrices) != 2 or not kept:
        return None
    if not _of(matrices[1], kept[-1:]):
        matrices.reverse()
    left, right = matrices
    rows = [v for v in kept if _of(left, [v]) and not _of(right, [v])]
    columns = [v for v in kept if _of(right, [v]) and not _of(left, [v])]
    lead = [v for v in kept if _of(left, [v]) and _of(right, [v])]
    if len(rows) != 1 or columns != kept[-1:] or len(lead) + 2 != len(kept):
        return None
    if not all(_of(load, reduced) for load in matrices):
        return None
    y, after = follower_of(behind[0], store.buffer, kept) or (None, None) if behind else (store.buffer, None)
    if y is None or not y.same_as(result):
        return None
    start = start_of(float(init.value), str(store.buffer.dtype))
    along = (lead, rows[0], columns[0], reduced[0], extents, list(store.indices), after)
    return _Form(value, type(store.value), start, left, right, others, *along)


def _of(load: TensorLoad, axes: Sequence[Var]) -> bool:
    """Whether a load goes along one of the axes."""
    return any(isinstance(index, Var) and index in axes for index in load.indices)


class _PairsKernel(RunTimeProducts):
    """Emits one kernel."""

    def __init__(self, function: PrimFunc, form: _Form, machine: CpuModel):
        self.function, self.form = function, form
        last = [index for index in form.right.indices if isinstance(index, Var)]
        last = [index for index in last if not is_one(form.extents[index])][-1]
        tile = _WIDE if machine.registers > _WIDE.rows * _WIDE.vectors + 4 else _NARROW
        super().__init__(
            *(str(form.left.source.dtype), tile, _UNROLL, machine),
            by_rows=last.same_as(form.column),
            by_columns=last.same_as(form.along),
            terms=Terms(self._term, COMBINED[form.combine], form.init),
            after=form.after,
            in_blocks=not isinstance(form.extents[form.along], tirx.IntImm),
        )
        self._others: list[tuple[TensorLoad, Callable[[Index], Expr]]] = []

    def emit(self, work: int) -> PrimFunc:
        """The PrimFunc, of the function's parameters."""
        k, form = self.k, self.form
        with k:
            own = {p: k.argument(p.name, list(p.shape), str(p.dtype)) for p in self.function.params}
            self.sizes = {v: k.let(tirx.Cast("int32", extent)) for v, extent in form.extents.items()}
            self.rows, self.width = self.sizes[form.row], self.sizes[form.column]
            self.depth, self.lead = self.sizes[form.along], [self.sizes[v] for v in form.lead]
            left, right, result = form.left, form.right, self.function.params[-1]
            self.a_place = (0, *self._steps(left.indices, [*form.lead, form.row, form.along]))
            self.b_place = (0, *self._steps(right.indices, [*form.lead, form.along, form.column]))
            self.y_place = (0, *self._steps(form.places, [*form.lead, form.row]))
            self.left = self._flat(own[left.source], left.indices)
            self.right = self._flat(own[right.source], right.indices)
            self.y = self._flat(own[result], form.places)
            for load in form.others:
                (step,) = self._steps(load.indices, [form.along])
                flat = self._flat(own[load.source], load.indices)
                value = functools.partial(self._scalar, flat, as_index(step))
                self._others.append((load, value))
            self.products(math.prod(self.lead, start=int32(1)), self.depth, 2 * work)
        return k.function

    def _flat(self, buffer: Buffer, indices: Sequence[Expr]) -> Buffer:
        return self.k.view(buffer, (self._product(indices),))

    def _product(self, indices: Sequence[Expr]) -> Expr:
        """Number of elements along indices."""
        return math.prod((self.sizes[i] for i in indices if isinstance(i, Var)), start=int32(1))

    def _steps(self, indices: Sequence[Expr], axes: Sequence[Var]) -> list[Index]:
        """Steps of axes in a buffer with these indices; 0 of those that it has not."""
        named = [index if isinstance(index, Var) else None for index in indices]
        return [
            self.k.let(self._product(named[named.index(axis) + 1 :])) if axis in named else 0 for axis in axes
        ]

    def _scalar(self, flat: Buffer, step: Expr, at: Index) -> Expr:
        return self.k.load(flat, [as_index(at) * step])

    def _term(self, at: Index, a: Expr, b: Expr) -> Expr:
        matrices = [(self.form.left, a), (self.form.right, b)]
        return of_vectors(self.form.value, matrices, self._others, at)
