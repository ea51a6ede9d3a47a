"""Depthwise convolutions: bound by memory, so that each value is read once, in vectors."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import tensors_of
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.buffers import flat_arguments
from hetero_tvm.schedules.cuda.products.epilogue import EpilogueSteps
from hetero_tvm.schedules.cuda.values import oversized, vector_of
from hetero_tvm.schedules.emit import Kernel

_DTYPES = ("float32", "float16", "bfloat16")
_MOST_TAPS = 64


class CudaDepthwiseSpace(DesignSpace):
    """:class:`Conv2d` with as many groups as channels and filters.

    Loop structure::

        one thread per ``pixels`` results side by side, of a vector of channels (one channel in plain images)
          rows of taps
            that row's weights to registers
            every value that these results see, once: a vector, multiplied for each result that sees it
          bias, residual and activations, one store of a vector a pixel

    It is fast because neighbouring threads read neighbouring pixels, and results side by side share
    what they read.  W is packed [taps, channels].
    """

    name = "cuda.depthwise"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Conv2d) or not op.depthwise:
            return f"it serves depthwise convolutions, not {op.kind}"
        if not op.constant_weight:
            return "the weight is not constant"
        if op.dtype not in _DTYPES:
            return f"it multiplies {', '.join(_DTYPES)}, not {op.dtype}"
        x, y, residual = map(Layout.parse, (op.x_layout, op.y_layout, op.residual_layout))
        if x.block != y.block or (tensors_of(op.epilogue) and residual.block != y.block):
            return "its images are in different layouts"
        if any(y.halo) or any(residual.halo):
            return "results with zeros around them are not written"
        if op.kernel[0] * op.kernel[1] > _MOST_TAPS:
            return f"{op.kernel[0]} x {op.kernel[1]} taps are more than {_MOST_TAPS}"
        return oversized(op)

    def knobs(self, op: Conv2d, machine: GpuModel) -> tuple[Knob, ...]:
        vector = _vector(op)
        pixels = tuple(n for n in (2, 4, 1, 8) if n <= op.out_width and n * vector <= 32)
        return Knob("pixels", pixels), Knob("threads", (128, 256, 64))

    def default(self, op: Conv2d, machine: GpuModel) -> Point:
        # Fewer results a thread where there are too few threads to fill the GPU.
        known = self.knobs(op, machine)[0].choices
        enough = [n for n in sorted(known, reverse=True) if _threads(op, n) >= 1024 * machine.sms and n <= 4]
        return {"pixels": enough[0] if enough else 1, "threads": 128}

    def emit(self, op: Conv2d, point: Point, machine: GpuModel) -> PrimFunc:
        return _Emitter(op, pixels=point["pixels"], threads=point["threads"]).function()

    def pack(self, op: Conv2d, point: Point, machine: GpuModel) -> dict[int, Packer]:
        def by_taps(w: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(w.reshape(op.channels, -1).T)

        return {1: by_taps}

    def features(self, op: Conv2d, point: Point, machine: GpuModel) -> list[float]:
        return [
            float(point["pixels"]),
            math.log2(point["threads"]),
            float(_vector(op)),
            _threads(op, point["pixels"]) / (machine.sms * machine.threads_per_sm),
            float(op.kernel[0] * op.kernel[1]),
            float(op.strides[1]),
        ]


def _vector(op: Conv2d) -> int:
    """Channels of one load, which divide a block and the channels."""
    return vector_of(op.dtype, Layout.parse(op.y_layout).block, op.channels)


def _threads(op: Conv2d, pixels: int) -> int:
    """Number of threads, each with ``pixels`` results side by side."""
    y = Layout.parse(op.y_layout)
    vectors = y.blocks(op.channels) * y.block // _vector(op)
    return op.batch * vectors * op.out_height * -(-op.out_width // pixels)


class _Emitter:
    """Emits the kernel of one point."""

    def __init__(self, op: Conv2d, pixels: int, threads: int):
        self.op, self.pixels, self.threads = op, pixels, threads
        self.vector = _vector(op)
        self.x_layout, self.y_layout = Layout.parse(op.x_layout), Layout.parse(op.y_layout)

    def function(self) -> PrimFunc:
        op, k = self.op, Kernel("depthwise")
        with k:
            self.k = k
            taps = op.kernel[0] * op.kernel[1]
            self.x, self.w, *extra, self.y = flat_arguments(k, op, (taps, op.channels))
            self.steps = EpilogueSteps(op.epilogue, extra)
            count = _threads(op, self.pixels)
            with (
                T.launch_thread("blockIdx.x", -(-count // self.threads)) as block,
                T.launch_thread("threadIdx.x", self.threads) as thread,
            ):
                index = device.fixed(k, block * self.threads + thread)
                with k.when(index < count):
                    self._body(index)
        return k.function

    def _body(self, index: Expr) -> None:
        """Emit the work of one thread; threads go by vectors of a block, pixels, rows, blocks, images."""
        k, op, vector = self.k, self.op, self.vector
        inner = self.y_layout.block // vector
        across = -(-op.out_width // self.pixels)
        lane, rest = device.fixed(k, index % inner), device.fixed(k, index // inner)
        first = device.fixed(k, rest % across * self.pixels)
        rest = device.fixed(k, rest // across)
        row, rest = device.fixed(k, rest % op.out_height), device.fixed(k, rest // op.out_height)
        blocks = self.y_layout.blocks(op.channels)
        block, image = device.fixed(k, rest % blocks), device.fixed(k, rest // blocks)
        channel = device.fixed(k, block * self.y_layout.block + lane * vector)
        self.sums = k.scratch((self.pixels * vector,))
        with k.unroll(self.pixels * vector) as i:
            k.store(self.sums, tirx.const(0, "float32"), [i])
        padded = blocks * self.y_layout.block > op.channels
        with k.when(channel < op.channels) if padded else nullcontext():
            self._multiply(image * blocks + block, lane, channel, row, first)
        out = device.fixed(k, ((image * blocks + block) * op.out_height + row) * op.out_width + first)
        sums = k.scratch((vector,))
        for pixel in range(self.pixels):
            with k.when(first + pixel < op.out_width) if op.out_width % self.pixels else nullcontext():
                at = device.fixed(k, (out + pixel) * self.y_layout.block + lane * vector)
                with k.unroll(vector) as e:
                    k.store(sums, k.load(self.sums, [pixel * vector + e]), [e])
                with k.when(channel < op.channels) if padded else nullcontext():
                    self.steps.apply(k, sums, vector, channel, at)
                to = device.pointer(self.y, at)
                device.call("htvm_store", to, device.pointer(sums), template=str(vector))

    def _multiply(self, plane: Expr, lane: Expr, channel: Expr, row: Expr, first: Expr) -> None:
        k, op, vector = self.k, self.op, self.vector
        (high, wide), (down, right), (dy, dx) = op.kernel, op.strides, op.dilation
        (_, _, rows, pitch), block = self.x_layout.shape(op.image)[:4], self.x_layout.block
        top, left = self.x_layout.halo[:2]
        x0 = device.fixed(k, first * right - op.padding[1])
        weights, values = k.scratch((wide * vector,)), k.scratch((vector,))
        seen: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(self.pixels):
            for tap in range(wide):
                seen.setdefault(pixel * right + tap * dx, []).append((pixel, tap))
        for i in range(high):
            y = device.fixed(k, row * down + (i * dy - op.padding[0]))
            with k.when(tirx.all(y >= 0, y < op.height)):
                for tap in range(wide):
                    source = device.pointer(self.w, channel + (i * wide + tap) * op.channels)
                    to = device.pointer(weights, tap * vector)
                    device.call("htvm_load", source, to, template=str(vector))
                start = device.fixed(k, (plane * rows + (y + top)) * pitch + left)
                for place, uses in sorted(seen.items()):
                    x = device.fixed(k, x0 + place)
                    with k.when(tirx.all(x >= 0, x < op.width)):
                        source = device.pointer(self.x, (start + x) * block + lane * vector)
                        device.call("htvm_load", source, device.pointer(values), template=str(vector))
                        for pixel, tap in uses:
                            with k.unroll(vector) as e:
                                at = [pixel * vector + e]
                                product = k.load(values, [e]) * k.load(weights, [tap * vector + e])
                                k.store(self.sums, k.load(self.sums, at) + product, at)
