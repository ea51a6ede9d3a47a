"""Convolutions of 8-bit images on the matrix unit.

Loops: those of :mod:`hetero_tvm.schedules.npu.images.conv2d_kernel` with the way out of
:mod:`hetero_tvm.schedules.npu.matmul.quantized`; what lies outside of an image is its zero point.

Why it is fast: the matrix unit takes twice the depth per cycle, and half the bytes move.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, DerivedSpace, NpuSpace
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace, by_taps
from hetero_tvm.schedules.npu.images.conv2d_kernel import Conv2dEmitter
from hetero_tvm.schedules.npu.images.conv2d_tiles import as_product, is_plain
from hetero_tvm.schedules.npu.matmul.quantized import FLOAT_EPILOGUE, QuantizedEmitter, pack_vectors
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, column_panels


class NpuQuantizedConv2dSpace(DerivedSpace):
    """``ops.QuantConv2d`` without groups on the NPU."""

    name = "npu.quant_conv2d"
    version = 1
    operator = QuantConv2d

    def base_space(self) -> NpuSpace:
        return NpuConv2dSpace()

    def base_operator(self, op: QuantConv2d) -> Conv2d:
        return dataclasses.replace(op.plain, epilogue=FLOAT_EPILOGUE)

    def layouts(self, op: QuantConv2d) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST, *(ROW_MAJOR,) * (len(op.inputs) - 1)), CHANNELS_LAST

    def pack(self, op: QuantConv2d, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        tn = Tiles.of(point).tn
        return {1: lambda w: column_panels(by_taps(w), tn, np.dtype(np.int8)), **pack_vectors(op)}

    def emit(self, op: QuantConv2d, point: Point, machine: NpuMachine) -> PrimFunc:
        tiles, panels, conv = Tiles.of(point), point.get("panels"), self.base_operator(op)
        if is_plain(conv):
            return QuantizedEmitter(op, as_product(conv), tiles, machine, panels).run()
        return _QuantizedConv2dEmitter(op, conv, tiles, machine, panels).run()


class _QuantizedConv2dEmitter(QuantizedEmitter, Conv2dEmitter):
    def __init__(self, op: QuantConv2d, like: Conv2d, tiles: Tiles, machine: NpuMachine, panels: int | None):
        super().__init__(op, like, tiles, machine, panels)
        self.fill = op.fill
