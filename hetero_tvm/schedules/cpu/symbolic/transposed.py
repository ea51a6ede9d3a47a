"""Tensors with their axes in another order, whose sizes come at run time, and functions of their elements.

Loop structure, where the axis that is read along is not the one that is written along::

    parallel (axes around, strips of lanes along the axis read along, pieces of the axis written along):
        for each block of the piece:
            the function, if there is one, of lanes x lanes elements in vectors, into a buffer on the stack
            transpose a square of lanes x lanes in registers

The last block of an axis begins earlier, so that it ends with the axis: what two blocks share is written
twice, with the same values.  Where an axis has fewer elements than a block, they are copied one by one, by
pieces of the longer axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetero_tvm.codegen import transpose
from hetero_tvm.codegen.bfloat16 import bits_of_rounded
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Schedule, TensorLoad, Var, tirx, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import bits_of
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH, vector
from hetero_tvm.schedules.cpu.symbolic.reductions import one_load, replaced, variables_outside
from hetero_tvm.schedules.cpu.symbolic.tails import is_whole, product_of
from hetero_tvm.schedules.emit import Kernel, int32
from hetero_tvm.schedules.nests.nest import loads_of, substitute

_BLOCKS = 8
"""Blocks of a piece."""
_PIECE = 256
"""Elements of a piece that is copied one by one."""


@dataclass(frozen=True)
class _Form:
    """Axes of X in groups that stay side by side, in the order of Y, and their order in X."""

    x: Buffer
    y: Buffer
    groups: list[list[Var]]
    extents: list[list[Expr]]
    order: list[int]
    value: Expr
    """Element of Y: a load of X, or a function of one and of others."""
    alone: bool
    """Whether nothing but the element of X tells that of Y."""


def transposed_kernel(function: PrimFunc, sch: Schedule, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function that has elements in another order; None for any other."""
    form = _form_of(function, sch)
    return None if form is None else _Emitter(function, form, machine).emit()


def _form_of(function: PrimFunc, sch: Schedule) -> _Form | None:
    blocks = [sch.get(block) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if len(blocks) != 1 or blocks[0].init is not None or not isinstance(blocks[0].body, tirx.BufferStore):
        return None
    store, axes = blocks[0].body, {axis.var: axis.dom.extent for axis in blocks[0].iter_vars}
    wide = {v for v, extent in axes.items() if not (isinstance(extent, tirx.IntImm) and int(extent) == 1)}
    written = _variables(store.indices, axes, wide)
    found = loads_of(store.value)
    known = all(load.source in set(function.params) and not guarded for load, guarded in found)
    if not written or not known or store.buffer not in set(function.params) or bits_of(store.buffer) % 8:
        return None
    if set(written) != wide or not is_whole(store.buffer.shape, store.indices, axes):
        return None
    reads = [(load, _variables(load.indices, axes, wide)) for load, _ in found]
    across = [
        (load, read)
        for load, read in reads
        if read and set(read) == wide and not read[-1].same_as(written[-1])
        if is_whole(load.source.shape, load.indices, axes)
    ]
    along = [load for load, _ in found if load.indices and written[-1].same_as(load.indices[-1])]
    if not across or len(across) < len(along):
        return None  # rows are copied whole
    x, read = across[0]
    ones = {axis: tirx.const(0, str(axis.ty.dtype)) for axis in axes if axis not in wide}
    value = substitute(store.value, ones)
    alone = one_load(value) is not None and not variables_outside(value)
    groups: list[list[Var]] = []
    for variable in written:
        place = read.index(variable)
        if alone and groups and place and groups[-1][-1].same_as(read[place - 1]):
            groups[-1].append(variable)
        else:
            groups.append([variable])
    starts = sorted(range(len(groups)), key=lambda n: read.index(groups[n][0]))
    extents = [[axes[variable] for variable in group] for group in groups]
    return _Form(x.source, store.buffer, groups, extents, starts, value, alone)


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

    def __init__(self, function: PrimFunc, form: _Form, machine: CpuModel):
        self.function, self.form, self.machine, self.k = function, form, machine, Kernel()
        self.bits = bits_of(form.y)
        self.lanes = transpose.lanes_of(machine.lanes, self.bits)

    def emit(self) -> PrimFunc:
        k, form = self.k, self.form
        with k:
            self.buffers = {p: k.argument(p.name, list(p.shape), str(p.dtype)) for p in self.function.params}
            extents = [product_of(k, group) for group in form.extents]
            self.read_along, self.written_along = form.order[-1], len(extents) - 1
            self.into = self._strides(list(range(len(extents))), extents)
            self.out_of = self._strides(form.order, extents)
            size = k.let(self.into[0] * extents[0])
            self.x, self.y = (k.view(self.buffers[one], (size,)) for one in (form.x, form.y))
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

    def _around(self, item: Expr) -> dict[int, Expr]:
        """Place along each of the axes around.

        Where the other axes are large, the branch for few elements is one of none: nothing there may be
        divided by an extent that is 0.
        """
        places = {}
        for number, (n, extent) in reversed(list(enumerate(self.around))):
            if number:
                divisor = self.k.let(tirx.max(extent, int32(1)))
                places[n] = self.k.let(tirx.truncmod(item, divisor))
                item = self.k.let(tirx.truncdiv(item, divisor))
            else:
                places[n] = item
        return places

    def _offset(self, places: Mapping[int, Expr], strides: Mapping[int, Expr]) -> Expr:
        total = int32(0)
        for n, place in places.items():
            total = total + place * strides[n]
        return total

    def _element(self, places: Mapping[int, Expr]) -> Expr:
        """The element of Y at a place along each group."""
        if self.form.alone:
            taken = self.k.load(self.x, [self._offset(places, self.out_of)])
            return replaced(self.form.value, self.form.x, taken)
        axes = {self.form.groups[n][0]: place for n, place in places.items()}
        values = {axis: tirx.Cast(str(axis.ty.dtype), place) for axis, place in axes.items()}

        def load(node: TensorLoad) -> Expr:
            return self.k.load(
                self.buffers[node.source], [substitute(index, values) for index in node.indices]
            )

        value = tvm_ffi.structural_map(self.form.value, (TensorLoad, load), order="pre")
        return substitute(value, values)

    def _pieces(self, alone: Expr | bool, counts: list[Expr], body: Callable[..., None]) -> None:
        """``body(places around, *numbers)`` of all pieces; ``counts`` of them behind the axes around."""
        k, total = self.k, int32(1)
        for extent in [*(extent for _, extent in self.around), *counts]:
            total = total * extent

        def piece(item: Expr) -> None:
            numbers = []
            for count in reversed(counts):
                numbers.insert(0, k.let(tirx.truncmod(item, count)))
                item = k.let(tirx.truncdiv(item, count))
            body(self._around(item), *numbers)

        k.shared_unless(alone, k.let(total), piece)

    def _by_blocks(self, alone: Expr | bool) -> None:
        k, lanes = self.k, self.lanes
        strips, along = (k.let((extent + (lanes - 1)) // int32(lanes)) for extent in (self.a, self.b))
        pieces = k.let((along + (_BLOCKS - 1)) // int32(_BLOCKS))

        def piece(around: dict[int, Expr], strip: Expr, number: Expr) -> None:
            source, target = (k.let(self._offset(around, each)) for each in (self.out_of, self.into))
            i = k.let(tirx.min(strip * lanes, self.a - lanes))
            with k.serial(tirx.min(along - number * _BLOCKS, int32(_BLOCKS))) as block:
                j = k.let(tirx.min((number * _BLOCKS + block) * lanes, self.b - lanes))
                into = self.into[self.read_along]
                written = k.address(self.y, [target + i * into + j])
                if isinstance(self.form.value, TensorLoad):
                    step = self.out_of[self.written_along]
                    read = k.address(self.x, [source + j * step + i])
                else:
                    step, read = int32(lanes), k.address(self._computed(around, i, j), [0])
                k.call(transpose.name_of(lanes, self.bits), written, into, read, step)

        self._pieces(alone, [strips, pieces], piece)

    def _computed(self, around: Mapping[int, Expr], i: Expr, j: Expr) -> Buffer:
        """A square of elements of Y, in rows of those that lie side by side in X."""
        k, lanes = self.k, self.lanes
        dtype = str(self.form.y.dtype)
        halves = dtype == "bfloat16"  # TVM widens local buffers of these to float32, bits and all
        square = k.scratch((lanes * lanes,), "uint16" if halves else dtype)
        with k.serial(int32(lanes)) as row, vector(lanes) as lane:
            places = {**around, self.read_along: i + lane, self.written_along: j + row}
            value = self._element(places)
            k.store(square, bits_of_rounded(value) if halves else value, [row * lanes + lane])
        return square

    def _one_by_one(self, alone: Expr | bool) -> None:
        k = self.k

        def by_pieces(long: Expr, short: Expr, place: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> None:
            pieces = k.let((long + (_PIECE - 1)) // int32(_PIECE))

            def piece(around: dict[int, Expr], number: Expr) -> None:
                first = k.let(number * _PIECE)
                with k.serial(short) as n, k.serial(tirx.min(long - first, int32(_PIECE))) as m:
                    i, j = place(n, first + m)
                    places = {**around, self.read_along: i, self.written_along: j}
                    k.store(self.y, self._element(places), [self._offset(places, self.into)])

            self._pieces(alone, [pieces], piece)

        k.branch(
            self.b >= self.a,
            lambda: by_pieces(self.b, self.a, lambda n, m: (n, m)),
            lambda: by_pieces(self.a, self.b, lambda n, m: (m, n)),
        )
