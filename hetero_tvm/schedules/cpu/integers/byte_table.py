"""A function of one byte over a tensor of any size, by its table.

Loop structure::

    parallel chunks of the flat tensor:
        vectors of bytes, each looked up as a whole in registers
        the last chunk: what is left, byte by byte

A quantised sigmoid, SiLU or GELU costs what a copy of its bytes does: with permutations of bytes (AVX-512
VBMI) three instructions for 64, else some 64 for 32 (see ``byte_shuffles.py``).
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.byte_table import ENTRIES, ByteTable
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.byte_shuffles import byte_table_ir, function_name
from hetero_tvm.schedules.cpu.rows.row_chunks import LAUNCH_WORTH, RowSpace
from hetero_tvm.schedules.emit import Index, Kernel, int32, share
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


class ByteTableSpace(RowSpace):
    """Design space of ``ByteTable``; its chunks are of whole vectors."""

    name = "cpu.byte_table"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, ByteTable):
            return "not a function of one byte"
        return "an extent is zero" if op.size == 0 else None

    def row_count(self, op: ByteTable, machine: CpuModel) -> int:
        """Whole vectors (at least one)."""
        return max(1, op.size // _width(machine))

    def traffic(self, op: ByteTable) -> int:
        """Twice the bytes of both tensors: shuffles of 16 take about as long as the traffic."""
        return 2 * op.nbytes

    def emit(self, op: ByteTable, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            x, table = (k.argument(o.name, o.shape, o.dtype) for o in op.inputs)
            y = k.argument("Y", op.shape, op.y_dtype)
            _look_up(k, (x, table, y), op.size, point["chunks"], point["chunks"] == 1, machine)
        return k.function

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
        op: ByteTable = witnesses.largest
        k = Kernel()
        with k:
            variables = shape_variables(witnesses.symbols)
            shapes = witnesses.shapes(variables)
            dtypes = (op.x_dtype, op.y_dtype, op.y_dtype)
            x, table, y = (
                k.argument(name, shape, dtype)
                for name, shape, dtype in zip(("X", "table", "Y"), shapes, dtypes, strict=True)
            )
            size = witnesses.value(lambda one: one.size, variables, k.let)
            if not isinstance(size, int):
                size = k.let(tirx.Cast("int32", size))
            few = size < LAUNCH_WORTH // 4
            _look_up(k, (x, table, y), size, machine.threads, few, machine)
        return k.function


def _width(machine: CpuModel) -> int:
    """Bytes that are looked up together; 1 on machines without byte shuffles."""
    features = machine.features
    if machine.lanes == 16 and "avx512bw" in features:
        return 64
    if machine.lanes == 8 and "avx2" in features:
        return 32
    return 16 if "ssse3" in features else 1


def _look_up(
    k: Kernel,
    buffers: tuple[Buffer, Buffer, Buffer],
    size: Index,
    chunks: int,
    alone: bool | Expr,
    machine: CpuModel,
) -> None:
    """Emit the loops for X, the table and Y; ``size`` may be known at the call only."""
    width = _width(machine)
    x, table, y = buffers
    x, y = k.view(x, (size,)), k.view(y, (size,))
    blocks = size // width if isinstance(size, int) else k.let(tirx.truncdiv(size, int32(width)))

    def find(start: Index, many: int) -> None:
        at = [k.ramp(start, many)]
        value = k.load(x, at)
        if many > 1:
            dtype = f"{table.dtype}x{many}"
            found = tirx.call_extern(dtype, function_name(many), value, k.address(table, [0]))
        else:
            found = k.load(table, [tirx.bitwise_and(value.astype("int32"), int32(ENTRIES - 1))])
        k.store(y, found, at)

    def chunk(number: Expr) -> None:
        first, count = share(number, blocks, chunks)
        with k.serial(count) as block:
            find((first + block) * width, width)
        if width == 1:
            return
        with k.when(tirx.EQ(number, int32(chunks - 1))), k.serial(size - blocks * width) as rest:
            find(blocks * width + rest, 1)

    permutes = width == 64 and "avx512vbmi" in machine.features
    with k.imported(*([byte_table_ir(width, permutes)] if width > 1 else [])):
        k.shared_unless(alone, chunks, chunk)
