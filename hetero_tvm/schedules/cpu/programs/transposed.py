"""Maps that read an operand across the axis that they write along: transpositions, alone or fused.

Loop structure::

    parallel (rows of blocks, columns of blocks):
        for the blocks that a few cache lines of the operand hold:
            transpose a square of lanes x lanes in registers (``codegen.transpose``)
            where more is computed than moved: that on the square, which is in L1

Both sides are read and written by whole vectors, and each cache line once.  A piece of work goes along the
written axis, whose lines it fills one after the other.  Where rows of the result begin anywhere in a line, a
machine whose reads are far writes half lines, and goes along the other axis where its prefetchers follow it.
The last block of an axis begins earlier, so that it ends with the axis: what two blocks share is written
twice, with the same values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr, TensorLoad, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import Access, LinearNest, Views, bits_of, split_index, stored
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH, vector
from hetero_tvm.schedules.emit import Kernel, int32

_FEWEST = 4
"""Least lanes of a block."""

_LINE, _LINE_BITS = 16, 512
"""Elements of a cache line, of four bytes each, and its bits."""

_BLOCKS = 8
"""Blocks that one iteration goes through."""

_FEW_BLOCKS = 8
"""Lines of a row of the result up to which it is short."""


@dataclass(frozen=True)
class Transposed:
    """A map with operands that are contiguous along ``across``, not along the axis that is written along.

    Attributes
    ----------
    across : axis along which ``operands`` are contiguous.
    operands : their accesses.
    lanes : rows and columns of a block.
    bits : size of an element of the operands.
    """

    form: LinearNest
    across: int
    operands: tuple[Access, ...]
    lanes: int
    bits: int


def transposed_of(form: LinearNest, machine: CpuModel) -> Transposed | None:
    """The transposition that a map contains, if it does and blocks fit."""
    if len(form.kept) < 2 or form.store.steps[-1] != 1:
        return None
    operands = [a for _, a in form.loads if a.steps[-1] not in (0, 1) and 1 in a.steps]
    across = {a.steps.index(1) for a in operands}
    sizes = {bits_of(a.buffer) for a in operands}
    if len(across) != 1 or len(sizes) != 1:
        return None
    axis, bits = across.pop(), sizes.pop()
    least = min(form.kept[axis], form.kept[-1], transpose.lanes_of(machine.lanes, bits))
    lanes = 1 << (least.bit_length() - 1)
    if lanes < _FEWEST:
        return None
    if bits == _LINE_BITS // _LINE and _splits(form, axis, machine):
        lanes = min(lanes, _LINE // 2)  # stores of a whole line would all be split between two
    return Transposed(form, axis, tuple(dict.fromkeys(operands)), lanes, bits)


def emit_transposed(k: Kernel, found: Transposed, views: Views, machine: CpuModel) -> None:
    """The loops of one map, in a kernel that is being built."""
    form, lanes, axis = found.form, found.lanes, found.across
    name = transpose.name_of(lanes, found.bits)
    last = len(form.kept) - 1
    others = [n for n in range(last) if n != axis]
    walked, other = (axis, last) if _reads_along(found, machine) else (last, axis)
    along, across = (-(-form.kept[n] // lanes) for n in (walked, other))
    extents = [*(form.kept[n] for n in others), -(-along // _BLOCKS), across]
    alone = isinstance(form.term, TensorLoad)

    def block(positions: list[Expr]) -> None:
        squares = {}
        for operand in found.operands:
            source = k.address(views[operand.buffer], [operand.place(positions)])
            stride = int32(operand.steps[last])
            if alone:
                target = k.address(views[form.store.buffer], [form.store.place(positions)])
                k.call(name, target, int32(form.store.steps[axis]), source, stride)
                return
            squares[operand] = k.scratch((lanes * lanes,), _stored_as(views[operand.buffer]))
            target = k.address(squares[operand], [int32(0)])
            k.call(name, target, int32(lanes), source, stride)
        with k.serial(lanes) as row:
            with vector(lanes) as v:
                here = list(positions)
                here[axis], here[last] = positions[axis] + row, positions[last] + v
                held = {a: k.load(square, [row * lanes + v]) for a, square in squares.items()}
                for operand, number in held.items():
                    if str(views[operand.buffer].dtype) == "bfloat16":
                        held[operand] = tirx.reinterpret("bfloat16", number)
                value = form.value(k, views, here, held)
                k.store(views[form.store.buffer], stored(value), [form.store.place(here)])

    def start(number: Expr, extent: int) -> Expr:
        if extent % lanes == 0:
            return number * lanes
        return tirx.min(number * lanes, int32(extent - lanes))

    worth = math.prod(form.kept) >= PARALLEL_WORTH
    count = math.prod(extents)
    with (
        k.imported(transpose.ir(lanes, found.bits)),
        k.parallel(count) if worth else k.serial(count) as index,
    ):
        *where, group, line = split_index(index, extents)
        positions: list[Expr] = [int32(0)] * len(form.kept)
        for n, position in zip(others, where, strict=True):
            positions[n] = position
        positions[other] = start(line, form.kept[other])
        blocks = int32(_BLOCKS) if along % _BLOCKS == 0 else tirx.min(along - group * _BLOCKS, _BLOCKS)
        with k.serial(blocks) as number:
            positions[walked] = start(group * _BLOCKS + number, form.kept[walked])
            block(list(positions))


def _stored_as(view: Buffer) -> str:
    """Type of a copy in registers: TVM widens local buffers of bfloat16 to float32, bits and all."""
    dtype = str(view.dtype)
    return "uint16" if dtype == "bfloat16" else dtype


def _reads_along(found: Transposed, machine: CpuModel) -> bool:
    """Whether a piece of work goes along the axis that is read along: .45 to .9 of the time of the other way
    on a Xeon with tiles, but 1.2 to 2.4 of it where rows of the result are short, or those that are read
    begin anywhere in a line as well (measured)."""
    form, last = found.form, len(found.form.kept) - 1
    whole = all(operand.steps[last] % _LINE == 0 for operand in found.operands)
    return _splits(form, found.across, machine) and whole and form.kept[-1] > _FEW_BLOCKS * _LINE


def _splits(form: LinearNest, across: int, machine: CpuModel) -> bool:
    """Whether rows of the result begin anywhere in a line, on a machine whose reads are far."""
    return machine.exposed_reads > 0 and form.store.steps[across] % _LINE != 0
