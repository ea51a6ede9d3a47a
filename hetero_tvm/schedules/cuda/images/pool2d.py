"""Pooling over windows of an image on a GPU, in plain images and in blocks of channels."""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx
from hetero_tvm.machines.gpu import WARP, GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.buffers import flat_arguments
from hetero_tvm.schedules.cuda.threads import reduce_in_row
from hetero_tvm.schedules.cuda.values import oversized, vector_of
from hetero_tvm.schedules.emit import Kernel, int32

_DTYPES = ("float32", "float16", "bfloat16")
_THREADS = 128
_UNROLLED = 25
"""Places of the largest window whose loop is unrolled."""


class CudaPool2dSpace(DesignSpace):
    """:class:`Pool2d`.

    Loop structure::

        blockIdx.x over groups of results
          threads over results (vectors of channels; in plain images pixels), or
          ``lanes`` threads side by side for each
            places of the window inside of the image: one vector each, combined in float32
          lanes combined by shuffles
          one store of a vector

    It is fast because threads side by side read vectors side by side, and windows that overlap meet in
    L1.  Large windows (global pooling) have few results: there lanes share one.

    Knob ``lanes``: threads of one result.
    """

    name = "cuda.pool2d"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Pool2d):
            return f"it serves pool2d, not {op.kind}"
        if op.dtype not in _DTYPES:
            return f"it pools {', '.join(_DTYPES)}, not {op.dtype}"
        x, y = map(Layout.parse, (op.x_layout, op.y_layout))
        if x.block != y.block:
            return "its images are in different layouts"
        if any(y.halo):
            return "results with zeros around them are not written"
        if min(*op.image, *op.out_image, *op.kernel) < 1:
            return "an extent is zero"
        return oversized(op)

    def knobs(self, op: Pool2d, machine: GpuModel) -> tuple[Knob, ...]:
        places = math.prod(op.kernel)
        return (Knob("lanes", tuple(n for n in (1, 4, 8, 16, 32, 128) if n == 1 or n * 2 <= places)),)

    def default(self, op: Pool2d, machine: GpuModel) -> Point:
        # As few lanes as fill the GPU: each one more is a shuffle.
        known = self.knobs(op, machine)[0].choices
        enough = [n for n in known if n * _results(op) >= 512 * machine.sms]
        return {"lanes": enough[0] if enough else known[-1]}

    def emit(self, op: Pool2d, point: Point, machine: GpuModel) -> PrimFunc:
        return _Emitter(op, point["lanes"]).function()

    def features(self, op: Pool2d, point: Point, machine: GpuModel) -> list[float]:
        lanes, places = point["lanes"], math.prod(op.kernel)
        return [
            math.log2(lanes),
            float(_vector(op)),
            -(-places // lanes),
            math.log2(lanes * _results(op)),
            lanes * _results(op) / (machine.sms * machine.threads_per_sm),
        ]


def _vector(op: Pool2d) -> int:
    """Elements of one access."""
    return vector_of(op.dtype, Layout.parse(op.y_layout).block)


def _results(op: Pool2d) -> int:
    """Number of vectors of the result."""
    return math.prod(op.output.shape) // _vector(op)


class _Emitter:
    """Emits the kernel of one point."""

    def __init__(self, op: Pool2d, lanes: int):
        self.op, self.lanes, self.vector = op, lanes, _vector(op)
        self.x_layout, self.y_layout = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
        self.places = math.prod(op.kernel)
        self.start = -math.inf if op.mode == MAX else 0.0
        # Whether a window may reach beyond the image.
        self.border = any(
            op.window(axis, i)[1] - op.window(axis, i)[0] < op.kernel[axis]
            for axis in (0, 1)
            for i in (0, op.out[axis] - 1)
        )

    def function(self) -> PrimFunc:
        op, k, lanes = self.op, Kernel("pool2d"), self.lanes
        with k:
            self.k = k
            self.x, self.y = flat_arguments(k, op)
            beside, count = max(1, _THREADS // lanes), _results(op)
            with (
                T.launch_thread("blockIdx.x", -(-count // beside)) as block,
                T.launch_thread("threadIdx.x", beside * lanes) as thread,
            ):
                shared = None
                if lanes > WARP:
                    shared = T.alloc_buffer((self.vector * lanes // WARP,), "float32", scope="shared")
                lane = device.fixed(k, thread % lanes)
                result = device.fixed(k, block * beside + thread // lanes)
                # Threads past the last result work on it again, and store nothing: all meet in shuffles.
                known = result if count % beside == 0 else device.fixed(k, tirx.min(result, int32(count - 1)))
                self._pool(known, lane)
                if lanes > 1:
                    warps = lanes // WARP
                    for e in range(self.vector):
                        # One result a block where lanes are several warps: a row of words for each value.
                        row = e if warps > 1 else 0
                        reduce_in_row(k, self.sums, [int32(e)], lanes, lane, self._combine, shared, row)
                inside = [tirx.EQ(lane, int32(0))] if lanes > 1 else []
                inside += [result < count] if count % beside else []
                if inside:
                    with k.when(tirx.all(*inside)):
                        self._finish(known)
                else:
                    self._finish(known)
        return k.function

    def _combine(self, x: Expr, y: Expr) -> Expr:
        return tirx.max(x, y) if self.op.mode == MAX else x + y

    def _pool(self, result: Expr, lane: Expr) -> None:
        """Combine one lane's part of a window.  Order of results: memory order of Y."""
        k, op, vector = self.k, self.op, self.vector
        inner = self.y_layout.block // vector
        part, rest = device.fixed(k, result % inner), device.fixed(k, result // inner)
        self.column, rest = device.fixed(k, rest % op.out[1]), device.fixed(k, rest // op.out[1])
        self.row, plane = device.fixed(k, rest % op.out[0]), device.fixed(k, rest // op.out[0])
        self.channel = device.fixed(
            k, plane % self.y_layout.blocks(op.channels) * self.y_layout.block + part * vector
        )
        y0 = device.fixed(k, self.row * op.strides[0] - op.padding[0])
        x0 = device.fixed(k, self.column * op.strides[1] - op.padding[1])
        (_, _, rows, pitch), block = self.x_layout.shape(op.image)[:4], self.x_layout.block
        top, left = self.x_layout.halo[:2]
        start = device.fixed(k, ((plane * rows + (y0 + top)) * pitch + (x0 + left)) * block + part * vector)
        self.sums, values = k.scratch((vector,)), k.scratch((vector,))
        with k.unroll(vector) as e:
            k.store(self.sums, tirx.const(self.start, "float32"), [e])

        def take(place: Expr) -> None:
            i, j = place // op.kernel[1], place % op.kernel[1]

            def combine() -> None:
                at = device.pointer(self.x, start + (i * pitch + j) * block)
                device.call("htvm_load", at, device.pointer(values), template=str(vector))
                with k.unroll(vector) as e:
                    k.store(self.sums, self._combine(k.load(self.sums, [e]), k.load(values, [e])), [e])

            limits = []
            if self.border:
                y, x = y0 + i, x0 + j
                limits += [y >= 0, y < op.height, x >= 0, x < op.width]
            if self.lanes > 1 and self.places % self.lanes:
                limits.append(place < self.places)
            if limits:
                with k.when(tirx.all(*limits)):
                    combine()
            else:
                combine()

        if self.lanes == 1 and self.places <= _UNROLLED:
            for place in range(self.places):
                take(int32(place))
        else:
            with k.serial(-(-self.places // self.lanes)) as step:
                take(device.fixed(k, step * self.lanes + lane))

    def _finish(self, result: Expr) -> None:
        k, op, vector = self.k, self.op, self.vector
        if op.mode != MAX:
            count = device.fixed(k, self._counted(0, self.row) * self._counted(1, self.column))
            with k.unroll(vector) as e:
                k.store(self.sums, k.load(self.sums, [e]) / count.astype("float32"), [e])
        if op.channels % self.y_layout.block:  # lanes past the channels are zero
            with k.unroll(vector) as e:
                kept = tirx.Select(
                    self.channel + e < op.channels, k.load(self.sums, [e]), tirx.const(0, "float32")
                )
                k.store(self.sums, kept, [e])
        to = device.pointer(self.y, result * vector)
        device.call("htvm_store", to, device.pointer(self.sums), template=str(vector))

    def _counted(self, axis: int, index: Expr) -> Expr:
        """Rows or columns that a mean divides by (:meth:`Pool2d.counted`); 1 where it has none."""
        op = self.op
        if not self.border:
            return int32(op.kernel[axis])
        extent = (op.height, op.width)[axis]
        first = index * op.strides[axis] - op.padding[axis]
        last = first + op.kernel[axis]
        if op.count_padding:
            return tirx.max(tirx.min(last, int32(extent + op.padding[2 + axis])) - first, int32(1))
        return tirx.max(tirx.min(last, int32(extent)) - tirx.max(first, int32(0)), int32(1))
