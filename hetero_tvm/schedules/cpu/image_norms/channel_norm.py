"""Layer and RMS normalisation of each pixel over its channels, in blocks (NCHW[x]c).

Loop structure::

    parallel over rows of pixels:
        for as many pixels of a row as a vector has lanes:
            pass 1 over the blocks of channels: sums of x - x[0] by pixel and lane   (skipped for RMS)
            a square of sums transposed in registers and added up: the mean of each pixel
            pass 2: sums of (x - mean)**2, likewise
            pass 3: (x - mean) * rstd * scale + shift, stored
        zeros around the image

Pixels are lanes where they are folded, so that no lane is folded by itself.  What a piece reads stays in L1
over the passes.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.images.norms import BlockedNormalization
from hetero_tvm.schedules.cpu.image_norms.space import BlockedNormSpace, Operands
from hetero_tvm.schedules.cpu.images.blocked import without_lanes_past
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32


class BlockedNormalizeSpace(BlockedNormSpace):
    """Space of ``BlockedNormalization``."""

    name = "cpu.blocked_normalize"
    version = 1
    takes = BlockedNormalization

    @staticmethod
    def write(k: Kernel, op: BlockedNormalization, room: BlockedNormalization, machine: CpuModel) -> None:
        lanes, height = machine.lanes, op.height
        norm = _Pixels(k, op, machine)
        with k.imported(transpose.ir(lanes)), k.parallel(op.batch * height, op.flops) as item:
            image, row = (k.let(part(item, as_index(height))) for part in (tirx.floordiv, tirx.floormod))
            with k.serial(tirx.floordiv(op.width + int32(lanes - 1), int32(lanes))) as piece:
                start = k.let(piece * lanes)
                norm.write(image, row, start, k.let(tirx.min(int32(lanes), op.width - start)))
            with k.serial(norm.blocks) as block:
                norm.clear_halo(image, row, block)


class _Pixels:
    """Emits the passes over some pixels of a row."""

    def __init__(self, k: Kernel, op: BlockedNormalization, machine: CpuModel):
        self.k, self.op, self.lanes = k, op, machine.lanes
        self.blocks = -(-op.channels // machine.lanes)
        self.operands = Operands.declare(k, op, machine)

    def clear_halo(self, image: Expr, row: Expr, block: Expr) -> None:
        """Emit zeros around a row of a block of channels."""
        ends = tirx.EQ(row, int32(0)), tirx.EQ(row, self.op.height - 1)
        plane, of = image * self.blocks + block, self.operands
        of.y_form.clear_halo(of.y, plane, row, int32(1), *ends)

    def write(self, image: Expr, row: Expr, start: Index, count: Index) -> None:
        """Emit the passes over pixels ``start .. start + count`` of a row, as many as lanes at most."""
        k, op, lanes, every, of = self.k, self.op, self.lanes, self.k.ramp(0, self.lanes), self.operands
        mean, factor = k.scratch((lanes,)), k.scratch((lanes,))
        sums, turned = k.scratch((lanes * lanes,)), k.scratch((lanes * lanes,))
        share = k.splat(1.0 / op.channels, lanes)

        def x_at(block: Expr, pixel: Expr) -> Expr:
            return k.load(of.x, of.x_form.at(image * self.blocks + block, row, start + pixel))

        def apart(block: Expr, pixel: Expr) -> Expr:
            value = x_at(block, pixel)
            return value - k.splat(k.load(mean, [pixel]), lanes) if op.centered else value

        def total(term: Callable[[Expr, Expr], Expr]) -> Expr:
            with k.serial(lanes) as pixel:
                k.store(sums, k.splat(0.0, lanes), [k.ramp(pixel * lanes, lanes)])
            with k.serial(self.blocks) as block, k.serial(count) as pixel:
                there = [k.ramp(pixel * lanes, lanes)]
                # Of what lies behind the last channel only zeros count.
                value = without_lanes_past(k, term(block, pixel), block, op.channels, lanes)
                k.store(sums, k.load(sums, there) + value, there)
            ends = k.address(turned, [0]), int32(lanes), k.address(sums, [0]), int32(lanes)
            k.call(transpose.name_of(lanes), *ends)
            result = k.load(turned, [every])
            for lane in range(1, lanes):
                result = result + k.load(turned, [k.ramp(lane * lanes, lanes)])
            return result

        if op.centered:  # sums of differences to the first value: sums of values far from 0 are coarse
            k.store(mean, k.splat(0.0, lanes), [every])
            with k.serial(count) as pixel:
                first = of.x_form.first(image * self.blocks, row, start + pixel)
                k.store(mean, k.load(of.x, first), [pixel])
            average = total(apart) * share
            k.store(mean, k.load(mean, [every]) + average, [every])

        def square(block: Expr, pixel: Expr) -> Expr:
            value = k.let(apart(block, pixel))
            return value * value

        variance = total(square) * share
        k.store(factor, k.splat(1.0, lanes) / tirx.sqrt(variance + k.splat(op.eps, lanes)), [every])
        with k.serial(self.blocks) as block:
            scale, *shift = (k.let(k.load(vector, [k.ramp(block * lanes, lanes)])) for vector in of.vectors)
            with k.serial(count) as pixel:
                result = apart(block, pixel) * k.splat(k.load(factor, [pixel]), lanes) * scale
                result = result + shift[0] if op.shifted else result
                result = without_lanes_past(k, result, block, op.channels, lanes)
                k.store(of.y, result, of.y_form.at(image * self.blocks + block, row, start + pixel))
