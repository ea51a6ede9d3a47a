"""Planes of the input that an image of a convolution's result sums up: its own, or those of a few slices.

A volume's slices lie one behind the other, each in its channel blocks: the blocks of a window of slices are a
run of planes, and runs of neighbouring windows overlap.  A convolution over such a run reads what three or
more copies side by side would hold, where it lies.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.emit import Index, Kernel, int32


class SlicePlanes:
    """Run of planes for one image of Y.

    Parameters
    ----------
    blocks : planes of one image of X.
    batch : the image of Y.

    Attributes
    ----------
    first : the plane that block 0 of the run would be, if the volume had it.
    begin, end : blocks of the run that the volume has; the others are zero.
    complete : whether it has all of them, always.
    """

    def __init__(self, k: Kernel, op: Conv2d, blocks: int, batch: Expr):
        self.begin: Index = int32(0)
        # Not told by the bounds: of a volume of one slice they may be numbers as well.
        self.complete = not isinstance(op, Conv3d) or not (op.before or op.after)
        if not isinstance(op, Conv3d):
            self.first, self.end = batch * blocks, int32(blocks)
            return
        window = tirx.floormod(batch, op.out_slices) * op.step - op.before
        volume = tirx.floordiv(batch, op.out_slices)
        self.first = k.let((volume * op.slices + window) * blocks)
        self.end = int32(op.taps * blocks)
        if op.before:
            self.begin = k.let(tirx.max(-window, int32(0)) * blocks)
        if op.after:
            self.end = k.let(tirx.min(int32(op.taps), op.slices - window) * blocks)

    def inside(self, first: Index, count: Index) -> tuple[Index, Index]:
        """First and count of those of ``count`` blocks of the run, from ``first``, that the volume has."""
        if self.complete:
            return first, count
        begin = tirx.max(self.begin, first)
        return begin, tirx.max(tirx.min(self.end, first + count) - begin, int32(0))
