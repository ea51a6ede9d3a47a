"""Copies of a tensor with its axes in another order, whose sizes come at run time.

Loop structure, where the axis that is read along is not the one that is written along::

    parallel (axes around, strips of lanes along the axis read along, pieces of the axis written along):
        for each block of the piece: transpose a square of lanes x lanes in registers

The last block of an axis begins earlier, so that it ends with the axis: what two blocks share is written
twice, with the same values.  Where an axis has fewer elements than a block, they are copied one by one, by
pieces of the longer axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Schedule, TensorLoad, Var, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import bits_of
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH
from hetero_tvm.schedules.cpu.symbolic.tails import is_whole, product_of
from hetero_tvm.schedules.emit import Kernel, int32

_BLOCKS = 8
"""Blocks of a piece."""
_PIECE = 256
"""Elements of a piece that is copied one by one."""


@dataclass(frozen=True)
class _Copy:
    """Axes of X in groups that stay side by side: their extents, in the order of Y, and their order in X."""

    x: Buffer
    y: Buffer
    groups: list[list[Expr]]
    order: list[int]


def transposed_kernel(function: PrimFunc, sch: Schedule, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function that is one such copy; None for any other."""
    form = _copy_of(function, sch)
    return None if form is None else _Emitter(function, form, machine).emit()


def _copy_of(function: PrimFunc, sch: Schedule) -> _Copy | None:
    blocks = [sch.get(block) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if len(blocks) != 1 or blocks[0].init is not None or not isinstance(blocks[0].body, tirx.BufferStore):
        return None
    store, load = blocks[0].body, blocks[0].body.value
    if not isinstance(load, TensorLoad) or len(function.params) != 2:
        return None
    if [load.source, store.buffer] != list(function.params) or bits_of(store.buffer) % 8:
        return None
    axes = {axis.var: axis.dom.extent for axis in blocks[0].iter_vars}
    sides = ((load.source, load.indices), (store.buffer, store.indices))
    if not all(is_whole(buffer.shape, indices, axes) for buffer, indices in sides):
        return None
    wide = {v for v, extent in axes.items() if not (isinstance(extent, tirx.IntImm) and int(extent) == 1)}
    written, read = (_variables(indices, axes, wide) for indices in (store.indices, load.indices))
    if written is None or read is None or set(written) != set(read) or set(written) != wide:
        return None
    groups: list[list[Var]] = []
    for variable in written:
        place = read.index(variable)
        if groups and place and groups[-1][-1].same_as(read[place - 1]):
            groups[-1].append(variable)
        else:
            groups.append([variable])
    if not groups or groups[-1][-1].same_as(read[-1]):
        return None  # rows are copied whole
    starts = sorted(range(len(groups)), key=lambda n: read.index(groups[n][0]))
    return _Copy(load.source, store.buffer, [[axes[v] for v in group] for group in groups], starts)


def _variables(indices: object, axes: dict[Var, Expr], wide: set[Var]) -> list[Var] | None:
    """The axes of more than one element among indices; None where an index is no axis."""
    found = []
    for index in indices:
        if isinstance(index, tirx.IntImm) and int(index) == 0:
            continue
        if not isinstance(index, Var) or index not in axes:
            return None
        if index in wide:
            found.append(index)
    return found if len(set(found)) == len(found) else None


class _Emitter:
    """Emits one kernel."""

    def __init__(self, function: PrimFunc, form: _Copy, machine: CpuModel):
        self.function, self.form, self.machine, self.k = function, form, machine, Kernel()
        self.bits = bits_of(form.y)
        self.lanes = transpose.lanes_of(machine.lanes, self.bits)

    def emit(self) -> PrimFunc:
        k, form = self.k, self.form
        with k:
            buffers = {p: k.argument(p.name, list(p.shape), str(p.dtype)) for p in self.function.params}
            extents = [product_of(k, group) for group in form.groups]
            self.read_along, self.written_along = form.order[-1], len(extents) - 1
            self.into = self._strides(list(range(len(extents))), extents)
            self.out_of = self._strides(form.order, extents)
            size = k.let(self.into[0] * extents[0])
            self.x, self.y = k.view(buffers[form.x], (size,)), k.view(buffers[form.y], (size,))
            self.a, self.b = extents[self.read_along], extents[self.written_along]
            others = [n for n in range(len(extents)) if n not in (self.read_along, self.written_along)]
            self.around = [(n, extents[n]) for n in others]
            alone = True if self.machine.threads == 1 else size < PARALLEL_WORTH
            blocks = tirx.all(self.a >= self.lanes, self.b >= self.lanes)
            with k.imported(transpose.ir(self.lanes, self.bits)):
                k.branch(blocks, lambda: self._by_blocks(alone), lambda: self._one_by_one(alone))
        return k.function

    def _strides(self, order: list[int], extents: list[Expr]) -> dict[int, Expr]:
        """Distance of neighbours along each group, in a tensor of the groups in ``order``."""
        found, step = {}, int32(1)
        for n in reversed(order):
            found[n] = step
            step = self.k.let(step * extents[n])
        return found

    def _around(self, item: Expr) -> tuple[Expr, Expr]:
        """Places in X and in Y where an item of the axes around begins.

        Where the other axes are large, the branch for few elements is one of none: nothing there may be
        divided by an extent that is 0.
        """
        source = target = int32(0)
        for number, (n, extent) in reversed(list(enumerate(self.around))):
            if number:
                divisor = self.k.let(tirx.max(extent, int32(1)))
                place = self.k.let(tirx.truncmod(item, divisor))
                item = self.k.let(tirx.truncdiv(item, divisor))
            else:
                place = item
            source, target = source + place * self.out_of[n], target + place * self.into[n]
        return self.k.let(source), self.k.let(target)

    def _pieces(self, alone: Expr | bool, counts: list[Expr], body: Callable[..., None]) -> None:
        """``body(source, target, *numbers)`` of all pieces; ``counts`` of them behind the axes around."""
        k, total = self.k, int32(1)
        for extent in [*(extent for _, extent in self.around), *counts]:
            total = total * extent

        def piece(item: Expr) -> None:
            numbers = []
            for count in reversed(counts):
                numbers.insert(0, k.let(tirx.truncmod(item, count)))
                item = k.let(tirx.truncdiv(item, count))
            body(*self._around(item), *numbers)

        k.shared_unless(alone, k.let(total), piece)

    def _by_blocks(self, alone: Expr | bool) -> None:
        k, lanes = self.k, self.lanes
        strips, along = (k.let((extent + (lanes - 1)) // int32(lanes)) for extent in (self.a, self.b))
        pieces = k.let((along + (_BLOCKS - 1)) // int32(_BLOCKS))

        def piece(source: Expr, target: Expr, strip: Expr, number: Expr) -> None:
            i = k.let(tirx.min(strip * lanes, self.a - lanes))
            with k.serial(tirx.min(along - number * _BLOCKS, int32(_BLOCKS))) as block:
                j = k.let(tirx.min((number * _BLOCKS + block) * lanes, self.b - lanes))
                into = self.into[self.read_along]
                written = k.address(self.y, [target + i * into + j])
                out_of = self.out_of[self.written_along]
                read = k.address(self.x, [source + j * out_of + i])
                k.call(transpose.name_of(lanes, self.bits), written, into, read, out_of)

        self._pieces(alone, [strips, pieces], piece)

    def _one_by_one(self, alone: Expr | bool) -> None:
        k, into, out_of = self.k, self.into[self.read_along], self.out_of[self.written_along]

        def by_pieces(long: Expr, short: Expr, place: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> None:
            pieces = k.let((long + (_PIECE - 1)) // int32(_PIECE))

            def piece(source: Expr, target: Expr, number: Expr) -> None:
                first = k.let(number * _PIECE)
                with k.serial(short) as n, k.serial(tirx.min(long - first, int32(_PIECE))) as m:
                    i, j = place(n, first + m)
                    k.store(self.y, k.load(self.x, [source + j * out_of + i]), [target + i * into + j])

            self._pieces(alone, [pieces], piece)

        k.branch(
            self.b >= self.a,
            lambda: by_pieces(self.b, self.a, lambda n, m: (n, m)),
            lambda: by_pieces(self.a, self.b, lambda n, m: (m, n)),
        )
