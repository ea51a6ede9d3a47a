"""Sums, means, products, maxima and minima over any axes on a GPU, with the elementwise steps around them.

Loop structure, where the reduced axes lie side by side in memory ("rows")::

    blockIdx.x over groups of results and splits of the reduction
      threads of a row, rows of a block
        16-byte loads along the reduction, partial results in registers
        shuffles, and one word a warp in shared memory

and where the results do ("columns")::

    blockIdx.x over groups of 32 x vector results and splits of the reduction
      lanes over results, 16-byte loads along them; threads down over the reduction
      partial results of the threads down meet in shared memory

Few results of long reductions are split over blocks; a second kernel combines the splits.  Every operand
is read once, in full lines.  Sums of float16 are made in float32.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.gpu import WARP, GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.tensor_program.reduce_kernel import emit
from hetero_tvm.schedules.cuda.tensor_program.reduction import LANES, Reduction, ReductionBlock, reduction_of
from hetero_tvm.schedules.nests.program import program_nests

_MOST_SPLITS = 64


class CudaReduceSpace(DesignSpace):
    """One reduction: generic kernels and pooling.

    Knob ``block``: (threads along the reduction, rows of a block beside each other, splits), see
    :class:`ReductionBlock`.
    """

    name = "cuda.reduce"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        nests = program_nests(op)
        if isinstance(nests, str):
            return nests
        found = reduction_of(nests)
        return found if isinstance(found, str) else None

    def knobs(self, op: FusedOp, machine: GpuModel) -> tuple[Knob, ...]:
        found = blocks_of(reduction_of(program_nests(op)), machine)
        return (Knob("block", tuple(block.choice for block in found)),)

    def default(self, op: FusedOp, machine: GpuModel) -> Point:
        return {"block": blocks_of(reduction_of(program_nests(op)), machine)[0].choice}

    def emit(self, op: FusedOp, point: Point, machine: GpuModel) -> PrimFunc:
        nests = program_nests(op)
        return emit(nests, reduction_of(nests), ReductionBlock(*point["block"]))

    def features(self, op: FusedOp, point: Point, machine: GpuModel) -> list[float]:
        found = reduction_of(program_nests(op))
        return [
            *(math.log2(value) for value in point["block"]),
            math.log2(found.nest.length),
            math.log2(found.nest.size),
            float(found.rows),
            float(found.width),
            _cost(found, ReductionBlock(*point["block"]), machine),
        ]


def blocks_of(found: Reduction, machine: GpuModel) -> list[ReductionBlock]:
    """The divisions of a reduction among threads, the most promising first."""
    length = found.nest.length // (found.width if found.rows else 1)
    every = []
    for threads in (32, 128, 256, 512, 8, 1) if found.rows else (8, 16, 32, 4, 1):
        if threads > 1 and threads >= 2 * length:
            continue
        beside = max(1, 128 // threads) if found.rows else 1
        for splits in (1, 2, 4, 8, 16, 32, _MOST_SPLITS):
            if splits == 1 or splits * threads * 4 <= length:
                every.append(ReductionBlock(threads, beside, splits))
    return sorted(every, key=lambda block: _cost(found, block, machine))


def _cost(found: Reduction, block: ReductionBlock, machine: GpuModel) -> float:
    """Relative time: reads limited by the threads that are there, steps of one thread, a second kernel."""
    threads, splits = block.threads, block.splits
    size = threads * (block.beside if found.rows else LANES)
    blocks = -(-found.groups // block.beside) * splits
    resident = min(machine.sms * 2048, blocks * size)
    length = found.nest.length // (found.width if found.rows else 1)
    steps = -(-length // (threads * splits))
    waves = max(1.0, blocks * size / (machine.sms * 2048))
    thin = (machine.sms * 1024 / resident) ** 0.5 if resident < machine.sms * 1024 else 1.0
    folding = math.log2(threads) + (4 if threads > WARP else 0)
    return waves * (steps * thin + folding) + (30 if splits > 1 else 0) + splits * 0.1
