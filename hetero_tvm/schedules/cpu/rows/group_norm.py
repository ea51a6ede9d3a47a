"""Group normalisation: a row is one group of one sample.

Loop structure::

    parallel chunks of rows:
        pass 1: sum, in 4 independent vector accumulators
        pass 2: sum of (x - mean)**2
        for each channel of the group:
            pass 3: (x - mean) * (rstd * scale) + shift, the activation, stored

A group is contiguous, so the first two passes know no channels; the third has one scale and shift per
channel in registers (without spatial extents it takes vectors of them instead).
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.activations import Activations
from hetero_tvm.schedules.cpu.rows import row
from hetero_tvm.schedules.cpu.rows.row_tiles import chunk_choices, default_chunks, each_row
from hetero_tvm.schedules.emit import Kernel, constant, tirx


class GroupNormSpace(DesignSpace):
    """Knob: into how many parallel chunks the rows are cut."""

    name = "cpu.group_norm"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, GroupNorm):
            return "not a group normalisation"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def knobs(self, op: GroupNorm, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("chunks", chunk_choices(op.rows, machine)),)

    def default(self, op: GroupNorm, machine: CpuModel) -> Point:
        return {"chunks": default_chunks(op.rows, op.nbytes, machine)}

    def emit(self, op: GroupNorm, point: Point, machine: CpuModel) -> Any:
        lanes, per_group = machine.lanes, op.channels // op.groups
        activations = Activations((op.activation,), machine)
        k = Kernel()
        with k:
            x, scale, shift = (k.argument(o.name, o.shape) for o in op.inputs)
            y = k.argument("Y", op.shape)
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))

            def one(i: Any) -> None:
                stats = k.scratch((4,))  # mean, 1 / deviation, then scale and shift of a channel
                first = tirx.floormod(i, op.groups) * per_group

                def get(c: Any, width: int) -> Any:
                    return k.load(x, [i, k.ramp(c, width)])

                def centered(c: Any, width: int) -> Any:
                    return get(c, width) - k.splat(k.load(stats, [0]), width)

                def put(c: Any, width: int, factor: Any, offset: Any) -> None:
                    value = centered(c, width) * factor + offset
                    if op.activation:
                        value = activations.apply(op.activation, value, width)
                    k.store(y, value, [i, k.ramp(c, width)])

                total = row.reduce_row(k, op.n, lanes, get, row.add, 0.0)
                k.store(stats, total * constant(1.0 / op.n), [0])
                squares = row.reduce_row(
                    k, op.n, lanes, lambda c, w: centered(c, w) * centered(c, w), row.add, 0.0
                )
                deviation = tirx.sqrt(squares * constant(1.0 / op.n) + constant(op.eps))
                k.store(stats, constant(1.0) / deviation, [1])
                if op.spatial == 1:
                    row.each_vector(
                        k, op.n, lanes,
                        lambda c, w, _: put(
                            c, w, k.splat(k.load(stats, [1]), w) * k.load(scale, [k.ramp(first + c, w)]),
                            k.load(shift, [k.ramp(first + c, w)]),
                        ),
                    )  # fmt: skip
                    return
                with k.serial(per_group) as channel:
                    k.store(stats, k.load(stats, [1]) * k.load(scale, [first + channel]), [2])
                    k.store(stats, k.load(shift, [first + channel]), [3])
                    row.each_vector(
                        k, op.spatial, lanes,
                        lambda c, w, _: put(
                            channel * op.spatial + c, w,
                            k.splat(k.load(stats, [2]), w), k.splat(k.load(stats, [3]), w),
                        ),
                    )  # fmt: skip

            with k.imported(*activations.imports):
                each_row(k, op.rows, point["chunks"], one)
        return k.function
