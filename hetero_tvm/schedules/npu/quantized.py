"""Products and convolutions of 8-bit integers on the matrix unit.

Loops: those of :mod:`hetero_tvm.schedules.npu.matmul.kernel` and
:mod:`hetero_tvm.schedules.npu.images.conv2d`, with int32 accumulators; their way out adds the bias, scales by
column, rounds and saturates in one instruction::

    for s in sub, rows of the tile: UB <- requantised(L0C + bias);  DRAM <- UB

Why it is fast: the matrix unit takes twice the depth per cycle, and half the bytes move.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.ops.quantized import OFFSET, QuantConv2d, QuantMatmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, NpuSpace, stored_as
from hetero_tvm.schedules.npu.emit import UB, At
from hetero_tvm.schedules.npu.images import conv2d
from hetero_tvm.schedules.npu.matmul.finish import least
from hetero_tvm.schedules.npu.matmul.kernel import Emitter
from hetero_tvm.schedules.npu.matmul.roles import NOTHING
from hetero_tvm.schedules.npu.matmul.space import WholeMatmulSpace
from hetero_tvm.schedules.npu.matmul.tiles import Tiles
from hetero_tvm.schedules.npu.tiles import extent_at, round_up

_STEPS = (BIAS, "silu")
"""What takes as much of the unified buffer as results of four bytes with bias and scale."""


def _model(op: FusedOp) -> Any:
    """The product or convolution of floats whose tiles fit this one as well."""
    if isinstance(op, QuantMatmul):
        return Matmul(op.lead, op.n, op.k, _STEPS)
    return dataclasses.replace(op.plain, epilogue=_STEPS)


class _QuantSpace(NpuSpace):
    version = 1

    def _floats(self) -> NpuSpace:
        """The space of floats that chooses the tiles."""
        raise NotImplementedError

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return self._floats().knobs(_model(op), machine)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return self._floats().default(_model(op), machine)

    def check(self, op: FusedOp, point: Point, machine: Any) -> None:
        self._floats().check(_model(op), point, machine)

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        return self._floats().features(_model(op), point, machine)

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        tn = Tiles(*point["tiles"]).tn

        def panels(w: np.ndarray) -> np.ndarray:
            if isinstance(op, QuantConv2d):
                w = w.transpose(2, 3, 1, 0).reshape(-1, op.filters)
            wide = np.zeros((w.shape[0], round_up(w.shape[1], tn)), np.int8)
            wide[:, : w.shape[1]] = w
            return wide.reshape(w.shape[0], -1, tn).transpose(1, 0, 2).reshape(-1)

        return {1: panels, 2: np.ascontiguousarray} | ({3: np.ascontiguousarray} if op.scaled else {})


class NpuQuantMatmulSpace(_QuantSpace):
    """``ops.QuantMatmul`` on the NPU."""

    name = "npu.quant_matmul"

    def _floats(self) -> NpuSpace:
        return WholeMatmulSpace()

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, QuantMatmul):
            return f"is for quant_matmul, not {op.kind}"
        return self._floats().refuses(_model(op), machine)

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return _Matmul(_model(op), Tiles(*point["tiles"]), machine, panels=point.get("panels")).set(op).run()


class NpuQuantConv2dSpace(_QuantSpace):
    """``ops.QuantConv2d`` on the NPU."""

    name = "npu.quant_conv2d"

    def _floats(self) -> NpuSpace:
        return conv2d.NpuConv2dSpace()

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, QuantConv2d):
            return f"is for quant_conv2d, not {op.kind}"
        return conv2d.NpuConv2dSpace().refuses(_model(op), machine)

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST, *(ROW_MAJOR,) * (len(op.inputs) - 1)), CHANNELS_LAST

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        tiles, model = Tiles(*point["tiles"]), _model(op)
        if conv2d.is_plain(model):
            product = conv2d.as_product(model)
            return _Matmul(product, tiles, machine, panels=point.get("panels")).set(op).run()
        return _Conv2d(model, tiles, machine, NOTHING, point.get("panels")).set(op).run()


class _Integers(Emitter):
    """What both emitters change of those of floats."""

    quantized: Any

    def set(self, op: Any) -> Any:
        """Work on int8 for this operator."""
        self.quantized = op
        self.dtype, self.accumulator = "int8", "int32"
        self.fill = getattr(op, "fill", 0)
        self.into = stored_as(op.out, self.result_dtype)
        return self

    def __init__(self, model: Matmul | Conv2d, tiles: Tiles, machine: Any, *more: Any, **options: Any):
        super().__init__(model, tiles, machine, *more, **options)
        self.result_dtype = machine.dtype

    def _constants_and_result(self, shape: tuple[int, ...]) -> None:
        op, k = self.op, self.k
        self.w = k.argument("W", (op.k * round_up(op.n, self.t.tn),), "int8")
        self.bias = k.argument("bias", (op.n,), "int32")
        self.scale = k.argument("scale", (op.n,), "float32") if self.quantized.scaled else None
        self.y = k.argument("Y", shape, self.into)

    def _finish(self, i: Any, j: Any, s: Any, c: Any) -> None:
        op, t, k, quantized = self.op, self.t, self.k, self.quantized
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        with k.loop(1, buffers=2):
            rows = {}
            for name, vector in (("bias", self.bias), ("scale", self.scale)):
                if vector is not None:
                    tile = k.alloc(UB, (t.tn,), str(vector.dtype))
                    source = At(vector, lambda b: (j * t.tn + b,))
                    k.load((width,), At(tile, lambda b: (b,)), source)
                    rows[name] = At(tile, lambda a, b: (b,))
            with k.loop((high + t.rows - 1) // t.rows, buffers=2) as e:
                part = extent_at(high, t.rows, e) if isinstance(high, int) else least(
                    t.rows, high - e * t.rows
                )  # fmt: skip
                y = k.alloc(UB, (t.rows, t.tn), self.into)
                zero = quantized.y_zero - OFFSET.get(quantized.out, 0)
                k.move_out(
                    (part, width), At(y, lambda a, b: (a, b)),
                    At(c, lambda a, b: (s, e * t.rows + a, b)), relu=quantized.relu, zero_point=zero, **rows,
                )  # fmt: skip
                target = self._output(i * t.tm + e * t.rows, j * t.tn, self.y)
                k.store((part, width), target, At(y, lambda a, b: (a, b)))


class _Matmul(_Integers):
    pass


class _Conv2d(_Integers, conv2d._Emitter):
    pass
