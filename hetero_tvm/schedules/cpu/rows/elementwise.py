"""One activation over a tensor.

Loop structure::

    parallel chunks of the flat tensor:
        vectors of the machine's width, 4 per step; the last chunk ends with narrower ones

Bound by memory once the polynomial of the activation is vectorised, which is all there is to it.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace
from hetero_tvm.schedules.emit import Index, Kernel, vector_loop

_UNROLL = 4


class ElementwiseSpace(RowSpace):
    """Design space of ``Elementwise``; its chunks are of whole steps of the vector loop."""

    name = "cpu.elementwise"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Elementwise):
            return "not an activation alone"
        return "an extent is zero" if op.size == 0 else None

    def row_count(self, op: Elementwise, machine: CpuModel) -> int:
        """Whole steps of the vector loop: what chunks are cut along (at least one)."""
        return max(1, op.size // (_UNROLL * machine.lanes))

    def traffic(self, op: Elementwise) -> int:
        """Twice the bytes: the polynomials take about as long as the traffic."""
        return 2 * op.nbytes

    def emit(self, op: Elementwise, point: Point, machine: CpuModel) -> PrimFunc:
        step = _UNROLL * machine.lanes
        blocks, chunks = self.row_count(op, machine), point["chunks"]
        activations = ActivationCode((op.function,), machine)
        k = Kernel()
        with k:
            x, y = k.argument("X", op.shape), k.argument("Y", op.shape)
            x, y = k.view(x, (op.size,)), k.view(y, (op.size,))

            def body(start: Index, width: int) -> None:
                at = [k.ramp(start, width)]
                k.store(y, activations.apply(op.function, k.load(x, at), width), at)

            with k.imported(*activations.imports), k.parallel(chunks) as chunk:
                first = tirx.floordiv(chunk * blocks, chunks)
                count = tirx.floordiv((chunk + 1) * blocks, chunks) - first
                if op.size >= step:
                    with k.serial(blocks if chunks == 1 else count) as block:
                        vector_loop(
                            k, step, machine.lanes, lambda c, w: body((first + block) * step + c, w), _UNROLL
                        )
                rest = op.size % step if op.size >= step else op.size
                if rest:
                    with k.when(tirx.EQ(chunk, tirx.const(chunks - 1, "int32"))):
                        vector_loop(k, rest, machine.lanes, lambda c, w: body(op.size - rest + c, w))
        return k.function
