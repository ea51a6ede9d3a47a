"""Reductions of neighbouring axes, the sizes known at run time.

Loop structure, where the innermost axis is reduced::

    parallel over rows of terms, or over pieces of them where there are fewer rows than threads:
        blocks of terms: four vectors of accumulators, which then join four others
        what is left by vectors, then one by one

and where axes behind are kept::

    parallel over strips of four vectors of results: blocks of rows of terms into four registers, which then
        join four others; the last results of a row one by one

Memory is read along its contiguous axis, once.  A block ends after some hundred terms of an accumulator, so
that sums of many values are exact to a few roundings more than a block has: blocks of float32 are joined in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Schedule, TensorLoad, Var, tirx, tvm, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH, vector
from hetero_tvm.schedules.cpu.symbolic.tails import is_one, is_whole, product_of
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32
from hetero_tvm.schedules.nests.nest import loads_of, substitute

_SETS = 4
"""Vectors of accumulators."""
_BLOCK = 128
"""Terms that one accumulator takes before it starts anew."""
_COMBINED = (tirx.Add, tirx.Max, tirx.Min)
_TYPES = ("float32", "float64", "int32", "int64")
_READ = (*_TYPES, "int8", "uint8")


@dataclass(frozen=True)
class _Form:
    """``Y = after(combine of term(X))`` over the axes between those that are kept, and those before them.

    Attributes
    ----------
    before, outer, reduced, inner : extents of X's axes: reduced, kept, reduced, kept; where there are any
        before, none are inner.
    term : of a load of X; ``after`` : of a result.
    """

    x: Buffer
    y: Buffer
    before: list[Expr]
    outer: list[Expr]
    reduced: list[Expr]
    inner: list[Expr]
    combine: type
    init: Expr
    dtype: str
    term: Callable[[Expr], Expr]
    after: Callable[[Expr], Expr]


def reduction_kernel(function: PrimFunc, sch: Schedule, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function that is one such reduction, and what each result goes through; None for any
    other."""
    form = _form_of(function, sch)
    return None if form is None else _Emitter(function, form, machine).emit()


def _form_of(function: PrimFunc, sch: Schedule) -> _Form | None:
    blocks = [sch.get(block) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if len(blocks) not in (1, 2) or any(not isinstance(block.body, tirx.BufferStore) for block in blocks):
        return None
    block, *behind = blocks
    store = block.body
    if not isinstance(block.init, tirx.BufferStore) or type(store.value) not in _COMBINED:
        return None
    sides = [store.value.a, store.value.b]
    own = [isinstance(side, TensorLoad) and side.source.same_as(store.buffer) for side in sides]
    dtype = str(store.buffer.dtype)
    if sum(own) != 1 or dtype not in _TYPES or not isinstance(block.init.value, tirx.IntImm | tirx.FloatImm):
        return None
    term = sides[own.index(False)]
    found = one_load(term)
    axes = {axis.var: axis for axis in block.iter_vars}
    if found is None or found.source not in function.params or str(found.source.dtype) not in _READ:
        return None
    if not all(isinstance(index, Var) and index in axes for index in found.indices):
        return None
    order = [axes[index] for index in found.indices]
    reduced = [int(axis.iter_type) == tirx.IterVar.CommReduce for axis in order]
    ones = {v for v, axis in axes.items() if v not in list(found.indices) and is_one(axis.dom.extent)}
    kept = [v for v, axis in axes.items() if v not in ones and int(axis.iter_type) == tirx.IterVar.DataPar]
    if len(order) + len(ones) != len(axes) or len({a.var for a in order}) != len(order) or not any(reduced):
        return None
    extent_of = {v: axis.dom.extent for v, axis in axes.items()}
    if not is_whole(found.source.shape, found.indices, extent_of):
        return None
    if any(v in axes for v in variables_outside(term)):
        return None  # a border, a triangle, or another term that asks where it is
    lead = reduced.index(False) if reduced[0] and False in reduced else 0
    lead = lead if any(reduced[lead:]) else 0
    first, last = lead + reduced[lead:].index(True), len(reduced) - reduced[::-1].index(True)
    if not all(reduced[first:last]) or [axis.var for axis in order if axis.var in kept] != kept:
        return None
    if lead and last < len(reduced):
        return None
    if not _are([index for index in store.indices if index not in ones], kept):
        return None
    y, after = store.buffer, lambda result: result
    if behind:
        follower = follower_of(behind[0], store.buffer, kept)
        if follower is None:
            return None
        y, after = follower
    if y not in function.params:
        return None
    extents = [axis.dom.extent for axis in order]
    return _Form(
        *(found.source, y, extents[:lead], extents[lead:first], extents[first:last], extents[last:]),
        *(type(store.value), block.init.value, dtype),
        lambda load: replaced(term, found.source, load),
        after,
    )


def follower_of(block, buffer: Buffer, kept: list[Var]) -> tuple[Buffer, Callable[[Expr], Expr]] | None:
    """The buffer that a block writes, and what it makes of each result alone for it."""
    found = one_load(block.body.value)
    if block.init is not None or found is None or not found.source.same_as(buffer):
        return None
    extent_of = {axis.var: axis.dom.extent for axis in block.iter_vars}
    sides = ((found.source, found.indices), (block.body.buffer, block.body.indices))
    if not all(is_whole(each.shape, indices, extent_of) for each, indices in sides):
        return None
    ones = [axis for axis in block.iter_vars if is_one(axis.dom.extent)]
    wide = [axis.var for axis in block.iter_vars if not is_one(axis.dom.extent)]
    named = [index for index in found.indices if isinstance(index, Var)]
    written = [i for i in block.body.indices if not any(i.same_as(axis.var) for axis in ones)]
    if not _are(written, wide) or [v for v in named if v in wide] != wide:
        return None
    zero = {axis.var: tirx.const(0, str(axis.var.ty.dtype)) for axis in ones}
    value = substitute(block.body.value, zero)
    if any(v in wide for v in variables_outside(value)):
        return None
    return block.body.buffer, lambda result: replaced(value, buffer, result)


def variables_outside(value: Expr) -> list[Var]:
    """Variables of an expression that do not stand in an index of a load."""
    found: list[Var] = []
    bare = tvm_ffi.structural_map(
        value, (TensorLoad, lambda load: tirx.const(0, str(load.source.dtype))), order="pre"
    )

    def note(variable: Var) -> Var:
        found.append(variable)
        return variable

    tvm_ffi.structural_map(bare, (tvm.ir.Var, note))
    return found


def _are(indices: object, variables: list[Var]) -> bool:
    """Whether indices are these variables, beside zeros."""
    rest = [i for i in indices if not (isinstance(i, tirx.IntImm) and int(i) == 0)]
    return len(rest) == len(variables) and all(
        isinstance(i, Var) and i.same_as(v) for i, v in zip(rest, variables, strict=True)
    )


def one_load(value: Expr) -> TensorLoad | None:
    """The load of an expression, however often it stands there; None where there are others, or none."""
    found = [load for load, _ in loads_of(value)]
    same = all(load.source.same_as(found[0].source) for load in found)
    if not same or any(not tvm_ffi.structural_equal(load, found[0]) for load in found[1:]):
        return None
    return found[0] if found else None


def replaced(value: Expr, buffer: Buffer, other: Expr) -> Expr:
    """An expression with ``other`` for what it loads from a buffer."""

    def load(node: TensorLoad) -> Expr:
        return other if node.source.same_as(buffer) else node

    return tvm_ffi.structural_map(value, (TensorLoad, load), order="pre")


class _Emitter:
    """Emits one kernel."""

    def __init__(self, function: PrimFunc, form: _Form, machine: CpuModel):
        self.function, self.form, self.machine, self.k = function, form, machine, Kernel()
        self.lanes = max(1, machine.lanes * 32 // tvm.DataType(form.dtype).bits)
        self.total = "float64" if form.dtype == "float32" and form.combine is tirx.Add else form.dtype
        """Type in which blocks are joined."""

    def emit(self) -> PrimFunc:
        """The PrimFunc, of the function's parameters."""
        k, form = self.k, self.form
        with k:
            buffers = {p: k.argument(p.name, list(p.shape), str(p.dtype)) for p in self.function.params}
            parts = form.before, form.outer, form.reduced, form.inner
            before, outer, terms, inner = (product_of(k, extents) for extents in parts)
            self.before, self.terms = before, terms
            if form.inner:
                self.x = k.view(buffers[form.x], (outer, terms, inner))
                self.y = k.view(buffers[form.y], (outer, inner))
                self._columns(outer, inner)
            else:
                self.x = k.view(buffers[form.x], (before, outer, terms))
                self.y = k.view(buffers[form.y], (outer,))
                self._rows(outer)
        return k.function

    def _shared(self, count: Expr, work: Expr, body: Callable[[Expr], None]) -> None:
        """``body(number)`` of all below ``count``, by several threads where the work is worth it."""
        self.k.shared_unless(self._alone(work), count, body)

    def _alone(self, work: Expr) -> Expr | bool:
        return True if self.machine.threads == 1 else work < PARALLEL_WORTH

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return self.form.combine(a, b)

    def _finish(self, total: Expr, at: list[Expr]) -> None:
        """Store what becomes of a result."""
        form = self.form
        total = total if self.total == form.dtype else tirx.Cast(form.dtype, total)
        self.k.store(self.y, form.after(total), at)

    # the innermost axis reduced ----------------------------------------------------------------
    def _rows(self, outer: Expr) -> None:
        k, threads = self.k, self.machine.threads

        def whole(row: Expr) -> None:
            self._finish(self._row(row, int32(0), self.terms), [row])

        def by_rows() -> None:
            self._shared(outer, self.before * outer * self.terms, whole)

        def by_pieces() -> None:
            with k.serial(outer) as row:
                parts = k.scratch((threads,), self.total)
                with k.parallel(threads) as piece:
                    first = k.let(self.terms // int32(threads) * piece)
                    end = tirx.Select(
                        piece < threads - 1, self.terms // int32(threads) * (piece + 1), self.terms
                    )
                    k.store(parts, self._row(row, first, k.let(end)), [piece])
                total = k.load(parts, [int32(0)])
                for piece in range(1, threads):
                    total = self._combined(total, k.load(parts, [int32(piece)]))
                self._finish(total, [row])

        if threads == 1:
            by_rows()
        else:
            few = self.before * outer * self.terms < 2 * PARALLEL_WORTH
            many = tirx.Or(outer >= threads, few)
            k.branch(many, by_rows, by_pieces)

    def _row(self, row: Expr, first: Expr, end: Expr) -> Expr:
        """Terms ``first`` to ``end`` of a row, combined."""
        k, form, lanes = self.k, self.form, self.lanes
        wide = _SETS * lanes
        total, block = k.scratch((wide,), self.total), k.scratch((wide,), form.dtype)
        rest = k.scratch((1,), self.total)
        self._clear(rest, 1)
        self._clear(total, wide)

        with k.serial(self.before) as lead:

            def take(into: Buffer, start: Expr, at: int, width: int) -> None:
                with vector(width) as v:
                    term = form.term(k.load(self.x, [lead, row, start + v]))
                    term = term if str(into.dtype) == form.dtype else tirx.Cast(self.total, term)
                    k.store(into, self._combined(k.load(into, [v + at]), term), [v + at])

            steps = k.let((end - first) // int32(wide))
            with k.serial((steps + (_BLOCK - 1)) // int32(_BLOCK)) as group:
                self._clear(block, wide)
                with k.serial(tirx.min(steps - group * _BLOCK, int32(_BLOCK))) as s:
                    for u in range(_SETS):
                        take(block, first + (group * _BLOCK + s) * wide + u * lanes, u * lanes, lanes)
                self._join(total, block, wide)
            done = k.let(first + steps * wide)
            vectors = k.let((end - done) // int32(lanes))
            with k.serial(vectors) as n:
                take(total, done + n * lanes, 0, lanes)
            done = k.let(done + vectors * lanes)
            with k.serial(end - done) as n:
                take(rest, done + n, 0, 1)
        width = wide
        while width > 1:
            width //= 2
            with vector(width) as v:
                k.store(total, self._combined(k.load(total, [v]), k.load(total, [v + width])), [v])
        return self._combined(k.load(total, [int32(0)]), k.load(rest, [int32(0)]))

    def _clear(self, buffer: Buffer, size: int) -> None:
        for start in range(0, size, self.lanes):
            with vector(min(self.lanes, size)) as v:
                init = self.form.init
                init = init if str(buffer.dtype) == self.form.dtype else tirx.const(init.value, buffer.dtype)
                self.k.store(buffer, init, [v + start])

    def _join(self, total: Buffer, block: Buffer, size: int) -> None:
        k = self.k
        for start in range(0, size, self.lanes):
            with vector(min(self.lanes, size)) as v:
                part = k.load(block, [v + start])
                part = part if self.total == self.form.dtype else tirx.Cast(self.total, part)
                k.store(total, self._combined(k.load(total, [v + start]), part), [v + start])

    # axes behind kept --------------------------------------------------------------------------
    def _columns(self, outer: Expr, inner: Expr) -> None:
        alone = self._alone(outer * self.terms * inner)
        self.k.strips(outer, inner, self.lanes, _SETS, alone, self._strip)

    def _strip(self, row: Expr, first: Index, width: int) -> None:
        """``width`` neighbouring results."""
        k, form, lanes = self.k, self.form, self.lanes
        total, block = k.scratch((width,), self.total), k.scratch((width,), form.dtype)
        at = min(lanes, width)
        self._clear(total, width)
        with k.serial((self.terms + (_BLOCK - 1)) // int32(_BLOCK)) as group:
            self._clear(block, width)
            with k.serial(tirx.min(self.terms - group * _BLOCK, int32(_BLOCK))) as n:
                for start in range(0, width, at):
                    with vector(at) as v:
                        place = [row, group * _BLOCK + n, as_index(first) + start + v]
                        term = form.term(k.load(self.x, place))
                        k.store(block, self._combined(k.load(block, [v + start]), term), [v + start])
            self._join(total, block, width)
        for start in range(0, width, at):
            with vector(at) as v:
                self._finish(k.load(total, [v + start]), [row, as_index(first) + start + v])
