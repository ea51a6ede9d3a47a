"""Operators that only copy, of any size: phases put side by side, and windows of the slices of volumes.

Windows at one size are loops as the operator states them.  The arithmetic of their indices becomes simpler
where a step divides the slices of a volume, so that no one text of these loops serves all sizes.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.images.interleave import Extents, put_side_by_side
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed, told_sizes
from hetero_tvm.schedules.emit import Index, Kernel, int32, vector_loop
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


def interleaved(witnesses: Witnesses, pixels: int) -> PrimFunc | None:
    """The PrimFunc: X, what only tells sizes, Y; None where the phases that are cut away differ."""
    op: Interleave = witnesses.largest
    if len({(one.strides, one.cut) for one in witnesses.ops}) > 1:
        return None
    k = Kernel()
    with k:
        variables = shape_variables(witnesses.symbols)
        shapes = witnesses.shapes(variables)
        x = k.argument("X", shapes[0], op.dtype)
        told_sizes(k, witnesses, shapes[1:-1])
        y = k.argument("Y", shapes[-1], op.dtype)
        sizes = narrowed(k, variables)
        extents = witnesses.value(lambda one: (one.batch, one.rows, one.columns, *one.out), sizes)
        put_side_by_side(k, op, x, y, Extents(*map(k.named, extents)), pixels)
    return k.function


class SliceWindowsSpace(DesignSpace):
    """Space of the one kernel for sizes known at run time; it has no knobs."""

    name = "cpu.slice_windows"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        return None if isinstance(op, SliceWindows) else "no windows of slices"

    def knobs(self, op: SliceWindows, machine: CpuModel) -> tuple[Knob, ...]:
        return ()

    def default(self, op: SliceWindows, machine: CpuModel) -> Point:
        return {}

    def emit(self, op: SliceWindows, point: Point, machine: CpuModel) -> PrimFunc:
        return op.workload()

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
        """PrimFunc of X, of what only tells sizes, and Y.

        Raises
        ------
        Unfit : windows or channels depend on the sizes.
        """
        op: SliceWindows = witnesses.largest
        if len({_window(one) for one in witnesses.ops}) > 1:
            raise Unfit("the windows depend on the sizes")
        k = Kernel()
        with k:
            variables = shape_variables(witnesses.symbols)
            shapes = witnesses.shapes(variables)
            x = k.argument("X", shapes[0])
            told_sizes(k, witnesses, shapes[1:-1])
            y = k.argument("Y", shapes[-1])
            sizes = narrowed(k, variables)

            def value(of) -> Index:
                return k.named(witnesses.value(of, sizes))

            slices, out = value(lambda one: one.slices), value(lambda one: one.out_slices)
            plane = value(lambda one: one.height * one.width)
            images, windows = (
                value(lambda one: one.inputs[0].shape[0]),
                value(lambda one: one.output.shape[0]),
            )
            x = k.view(x, (images * op.channels, plane))
            y = k.view(y, (windows * (op.taps * op.channels), plane))
            with k.parallel(windows * (op.taps * op.channels)) as row:
                image, channel = _divided(k, row, op.taps * op.channels)
                volume, window = _divided(k, image, out)
                group, channel = _divided(k, channel, op.taps * (op.channels // op.groups))
                tap, channel = _divided(k, channel, op.channels // op.groups)
                place = k.let(window * op.step + tap * op.dilation - op.before)
                channel = group * (op.channels // op.groups) + channel
                source = k.let((volume * slices + place) * op.channels + channel)

                def copy(start: Index, count: int) -> None:
                    k.store(y, k.load(x, [source, k.ramp(start, count)]), [row, k.ramp(start, count)])

                def clear(start: Index, count: int) -> None:
                    k.store(y, k.splat(0.0, count), [row, k.ramp(start, count)])

                k.branch(
                    tirx.all(place >= 0, place < slices),
                    lambda: vector_loop(k, plane, machine.lanes, copy),
                    lambda: vector_loop(k, plane, machine.lanes, clear),
                )
        return k.function


def _window(op: SliceWindows) -> tuple[int, ...]:
    """Attributes that no size may decide."""
    return op.channels, op.groups, op.taps, op.step, op.dilation, op.before


def _divided(k: Kernel, value: Expr, by: Index) -> tuple[Expr, Expr]:
    """Quotient and remainder."""
    quotient = k.let(tirx.truncdiv(value, by if not isinstance(by, int) else int32(by)))
    return quotient, k.let(value - quotient * by)
