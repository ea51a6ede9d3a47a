"""Products of a fixed number of rows with weights stored in few bits.

The loops are those of a decoder's products (``schedules/cpu/decoding/linear.py``)::

    one row:         threads share groups of panels; each weight is read once
    two to seven:    threads share panels; a weight is taken out of its word once for several rows
    more rows:       threads share panels and blocks of rows; a panel is made floats once, in L2
    halves:          made floats as they are loaded, in register tiles

With many rows the arithmetic is what counts, and that of float32 weights is no slower: what is won is memory.
Where X may be rounded, integers are multiplied at any number of rows, which is faster too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hetero_tvm.host.peaks import FLOAT32, INT8
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.ops.decoding.storage import QuantizedWeight
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.matmul import BIAS, TENSORS, joined, steps_with_operands
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.decoding.integer_words import has_integer_words, rounds_to_bytes
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.linear import many_rows, one_row, tile_height
from hetero_tvm.schedules.cpu.decoding.matrix_words import integer_product
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel
from hetero_tvm.schedules.cpu.decoding.words import FEW, WordProduct
from hetero_tvm.schedules.cpu.integers.bf16_matmul import LEAST_ROWS, rounds_rows
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed
from hetero_tvm.schedules.emit import Index, as_index, int32, vector_pieces
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

X_BITS = {"int4": 8, "int8": 16}
"""Bits that X of few rows is rounded to beside integers of each form, by integer instructions."""


def rounded_bits(form: str, rows: int, machine: CpuModel, any_rows: bool = False) -> int:
    """Bits that X is rounded to: 0 where the machine's kernel multiplies floats, 16 beside bfloat16 weights
    where it multiplies bfloat16; with ``any_rows`` the same for any number of rows from two on."""
    if rounds_rows(form, max(rows, LEAST_ROWS) if any_rows and rows > 1 else rows, machine):
        return 16
    return allowed_bits(form, machine) if rows < FEW else 0


def allowed_bits(form: str, machine: CpuModel) -> int:
    """Bits that X may be rounded to beside integers of a form, for any rows; 0 without instructions."""
    return X_BITS.get(form, 0) if has_integer_words(machine) else 0


def permitted_bits(form: str, machine: CpuModel) -> int:
    """Bits that X is rounded to where the model permits 8: as few where bytes are multiplied exactly."""
    return 8 if form == "int8" and rounds_to_bytes(machine) else allowed_bits(form, machine)


class StoredMatmulSpace(DesignSpace):
    """Knobs: panels that a row is multiplied with at once; rows of a register tile."""

    name = "cpu.stored_matmul"
    version = 3

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, StoredMatmul):
            return "not a product with stored weights"
        if op.x_bits not in (0, allowed_bits(op.form, machine), permitted_bits(op.form, machine)):
            return f"X of {op.x_bits} bits"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def arithmetic(self, op: StoredMatmul, machine: CpuModel) -> str:
        return INT8 if op.x_bits and op.storage.bits else FLOAT32

    def knobs(self, op: StoredMatmul, machine: CpuModel) -> tuple[Knob, ...]:
        best = _layout(op, machine).together
        most = max(best, 4 if not op.storage.bits else 2)
        together = [t for t in (best, 1, 2, 4) if t <= most] if op.m == 1 else [1]
        highest = tile_height(machine)
        heights = [h for h in range(highest, 1, -1) if h <= op.m] if _tiled(op) else []
        return (
            Knob("together", tuple(dict.fromkeys(together))),
            Knob("height", tuple(heights) or (1,)),
        )

    def default(self, op: StoredMatmul, machine: CpuModel) -> Point:
        return {knob.name: knob.choices[0] for knob in self.knobs(op, machine)}

    def features(self, op: StoredMatmul, point: Point, machine: CpuModel) -> list[float]:
        sizes = [math.log2(op.m), math.log2(op.columns), math.log2(op.k), op.storage.bytes_per_weight]
        return [*sizes, float(point["together"]), float(point["height"])]

    def estimate(self, op: StoredMatmul, point: Point, machine: CpuModel) -> float:
        best = self.default(op, machine)
        far = abs(math.log2(point["together"] / best["together"]))
        tiles = -(-op.m // point["height"]) * (point["height"] + 1)  # a tile loads its weights once
        return tiles * (1.0 + 0.05 * far)

    def pack(self, op: StoredMatmul, point: Point, machine: CpuModel) -> dict[int, Packer]:
        layout = _layout(op, machine, point["together"])
        if not op.storage.bits:
            return {1: lambda w: layout.pack(w)[0]}
        shape = (op.columns, op.groups)
        none = np.zeros(shape, np.uint8) if op.zero_points else None

        def part(index: int, **given: np.ndarray) -> np.ndarray:
            parts = {"q": np.zeros((op.columns, op.k), np.uint8), "scale": np.zeros(shape, op.scales)}
            return layout.pack(QuantizedWeight(op.storage, **{**parts, "zero": none, **given}))[index]

        packers: dict[int, Packer] = {1: lambda q: part(0, q=q), 2: lambda scale: part(1, scale=scale)}
        return packers | ({3: lambda zero: part(2, zero=zero)} if op.zero_points else {})

    def emit(self, op: StoredMatmul, point: Point, machine: CpuModel) -> PrimFunc:
        layout = _layout(op, machine, point["together"])
        activation = ActivationCode([*op.epilogue, op.gate], machine)
        k = SymbolicKernel()
        with k:
            x = k.argument("X", op.inputs[0].shape)
            weight = [k.argument(*array) for array in layout.arrays()]
            given = [(k.argument(o.name, o.shape), o.name) for o in op.inputs[1 + op.weights :]]
            y = k.argument("Y", op.output.shape)
            x, y = k.view(x, (op.m, op.k)), k.view(y, (op.m, op.n))
            extra = [k.view(buffer, (op.m, op.n)) if name in TENSORS else buffer for buffer, name in given]
            parts = _Finished(layout.op, machine, layout, k, x, weight, None, None, y, activation, op.x_bits)
            parts.whole, parts.extra = op, extra
            with k.imported(*activation.imports):
                self._product(parts, op, point["height"])
        return k.function

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
        op: StoredMatmul = witnesses.largest
        layout = _layout(op, machine, point["together"])
        activation = ActivationCode([*op.epilogue, op.gate], machine)
        k = SymbolicKernel()
        with k:
            variables = shape_variables(witnesses.symbols)
            shapes = witnesses.shapes(variables)
            x = k.argument("X", shapes[0])
            weight = [k.argument(*array) for array in layout.arrays()]
            behind = range(1 + op.weights, len(op.inputs))
            given = [(k.argument(op.inputs[n].name, shapes[n]), op.inputs[n].name) for n in behind]
            y = k.argument("Y", shapes[-1])
            rows = k.let(as_index(witnesses.value(lambda one: one.m, narrowed(k, variables))))
            x, y = k.view(x, (rows, op.k)), k.view(y, (rows, op.n))
            extra = [k.view(buffer, (rows, op.n)) if name in TENSORS else buffer for buffer, name in given]
            parts = _Finished(layout.op, machine, layout, k, x, weight, None, None, y, activation, op.x_bits)
            parts.whole, parts.extra = op, extra
            with k.imported(*activation.imports):
                self._rows(parts, op, rows)
        return k.function

    def _rows(self, parts: _Finished, op: StoredMatmul, rows: Expr) -> None:
        """Emit the product of as many rows as a call has."""
        k = parts.k
        if op.x_bits and op.storage.bits:
            integers = integer_product(parts)
            with k.imported(*integers.imports):
                integers.emit_rows(rows)
        elif op.storage.bits:
            WordProduct(parts).emit(rows, lambda: many_rows(parts, rows))
        else:
            k.branch(tirx.EQ(rows, 1), lambda: one_row(parts), lambda: many_rows(parts, rows))

    def _product(self, parts: _Finished, op: StoredMatmul, height: int) -> None:
        rows = int32(op.m)
        if op.x_bits and op.storage.bits:
            integers = integer_product(parts)
            with parts.k.imported(*integers.imports):
                if op.m < FEW:
                    integers.emit_few(op.m)
                else:
                    integers.emit_rows(rows)
        elif op.storage.bits and op.m < FEW:
            WordProduct(parts).emit_few(op.m)
        elif op.m == 1:
            one_row(parts)
        else:
            many_rows(parts, rows, height)


class _Finished(Parts):
    """Parts of a kernel whose sums get the epilogue of a contract."""

    whole: StoredMatmul
    extra: Sequence[Buffer]

    def put(
        self, row: Expr, panel: Expr, value_at: Callable[[Index, int], Expr], count: int, stored: Expr
    ) -> None:
        k, op, lanes = self.k, self.whole, self.lanes
        steps = steps_with_operands(op.epilogue, self.extra)
        for start, width in vector_pieces(count, lanes):
            column = panel * self.layout.columns + start
            value = self._finished(value_at(start, width), steps, row, column, width)
            if op.gate:
                other = self._finished(value_at(lanes + start, width), steps, row, column + op.n, width)
                value = self.activation.apply(op.gate, value, width) * other
            k.store(self.y, value, [row, k.ramp(column, width)])

    def _finished(self, value: Expr, steps: Sequence, row: Expr, column: Expr, width: int) -> Expr:
        """``width`` sums from ``column`` on after the steps of the epilogue."""
        at = self.k.ramp(column, width)
        for step, operand in steps:
            if step == BIAS:
                value = value + self.k.load(operand, [at])
            elif step in TENSORS:
                value = joined(step, value, self.k.load(operand, [row, at]))
            else:
                value = self.activation.apply(step, value, width)
        return value


def _tiled(op: StoredMatmul) -> bool:
    """Whether register tiles of several rows compute it."""
    return op.m > 1 and (not op.storage.bits or op.m >= FEW)


def _layout(op: StoredMatmul, machine: CpuModel, together: int | None = None) -> PanelLayout:
    """Layout of the weights; ``together`` as in it, the machine's own choice without."""
    linear = Linear(op.n, op.k, op.storage, activation=op.gate or None, gated=bool(op.gate))
    layout = PanelLayout.of(linear, machine)
    if together is None:
        return layout
    panels = -(-op.n // layout.columns)
    return dataclasses.replace(layout, together=together, panels=-(-panels // together) * together)
