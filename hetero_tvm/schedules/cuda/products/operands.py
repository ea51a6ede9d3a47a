"""Sources of the tiles of a product: copies of 16 bytes from global to shared memory.

A source emits, for one step of the reduction, what each thread copies.  Addresses that do not change
from step to step are computed once.  Rows beyond the end read the last row again (their results are not
stored); values beyond the end of the reduction read as zeros, and cost a test only where the length is
no multiple of the tile's depth.
"""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.products.fragments import depth_key, swizzled
from hetero_tvm.schedules.cuda.products.tiles import CHUNK
from hetero_tvm.schedules.emit import Kernel, int32

_PERIOD = 8
"""Lines after which every permutation of chunks repeats."""


class Source:
    """One operand of a product: fills ``lines`` rows of ``pitch`` bytes in shared memory at each step."""

    lines: int
    pitch: int
    width = CHUNK
    """Bytes of one copy."""

    def __init__(self, k: Kernel, size: int):
        self.k, self.size = k, size

    def begin(self, thread: Any, threads: int) -> None:
        """Compute everything that stays the same from step to step."""
        k = self.k
        per_line = self.pitch // CHUNK
        count = self.lines * per_line
        apart = threads // per_line  # lines from one copy of a thread to its next
        regular = threads % per_line == 0 and apart % _PERIOD == 0
        self.parts = []
        for i in range(-(-count // threads)):
            inside = thread + i * threads < count if (i + 1) * threads > count else None
            if not regular or i == 0:
                index = device.fixed(k, thread + i * threads)
                line, chunk = device.fixed(k, index // per_line), device.fixed(k, index % per_line)
                to = device.fixed(k, line * self.pitch + self._place(line, chunk) * CHUNK)
                base = self._base(line, chunk)
            further = i * apart if regular else 0
            self.parts.append((to + further * self.pitch, self._prepare(line, chunk, base, further), inside))

    def copy(self, shared: Any, at: Any, step: Any, when: Any = None) -> None:
        """Start the copies of one step to offset ``at`` of shared memory, where ``when`` holds."""
        for to, prepared, inside in self.parts:
            if inside is not None and when is not None:
                inside = tirx.all(inside, when)
            elif inside is None:
                inside = when
            if inside is None or self.predicated:
                self._copy(shared, at + to, prepared, step, inside)
            else:
                with self.k.when(inside):
                    self._copy(shared, at + to, prepared, step, None)

    @property
    def predicated(self) -> bool:
        """Whether a copy is one instruction that takes its condition: no branch cuts the loop in two."""
        return self.width >= 4

    def _place(self, line: Any, chunk: Any) -> Any:
        return swizzled(line, chunk, self.pitch)

    def _base(self, line: Any, chunk: Any) -> Any:
        """Values that the copies of a thread share when they are whole numbers of lines apart."""
        return None

    def _prepare(self, line: Any, chunk: Any, base: Any, further: int) -> Any:
        """Values for the copy of a chunk ``further`` lines below ``line``, which has ``base``."""
        raise NotImplementedError

    def _copy(self, shared: Any, at: Any, prepared: Any, step: Any, when: Any) -> None:
        raise NotImplementedError

    def _chunk(
        self, shared: Any, at: Any, buffer: Any, offset: Any, valid: Any, width: int, when: Any
    ) -> None:
        """Copy 16 bytes from element ``offset``, of which ``valid`` exist, in pieces of ``width`` bytes."""
        for part in range(0, CHUNK, width):
            left = valid if width == CHUNK else clamp(valid - part, width)
            source = device.pointer(buffer, offset + part // self.size)
            if width < 4:
                device.call("htvm_copy", shared, at + part, source, left, template=str(width))
                continue
            condition = int32(1) if when is None else when
            device.call("htvm_copy_async", shared, at + part, source, left, condition, template=str(width))


class Rows(Source):
    """A matrix [lines, length] whose rows lie along the reduction.

    Parameters
    ----------
    buffer : flat; ``offset`` its first element, ``stride`` elements from row to row.
    first : the tile's first row; ``extent`` rows exist (None: at least as many as tiles read).
    length : of the reduction; ``depth`` of it a step.
    """

    def __init__(
        self, k: Kernel, buffer: Any, offset: Any, stride: int, first: Any, extent: int | None, lines: int,
        length: int, depth: int, size: int, aligned: int = CHUNK,
    ):  # fmt: skip
        super().__init__(k, size)
        self.buffer, self.offset, self.stride = buffer, offset, stride
        self.first, self.extent, self.lines = first, extent, lines
        self.length, self.depth, self.pitch = length, depth, depth * size
        self.width = math.gcd(stride * size, aligned, CHUNK)

    def _base(self, line: Any, chunk: Any) -> Any:
        column = device.fixed(self.k, chunk * (CHUNK // self.size))
        return column, device.fixed(self.k, self.offset + (self.first + line) * self.stride + column)

    def _prepare(self, line: Any, chunk: Any, base: Any, further: int) -> Any:
        column, offset = base
        if self.extent is not None and self.extent % self.lines:
            row = tirx.min(self.first + line + further, int32(self.extent - 1))
            return device.fixed(self.k, self.offset + row * self.stride + column), column
        return offset + further * self.stride, column

    def _copy(self, shared: Any, at: Any, prepared: Any, step: Any, when: Any) -> None:
        offset, column = prepared
        valid: Any = int32(CHUNK)
        if self.length % self.depth:
            valid = device.fixed(self.k, clamp((self.length - step * self.depth - column) * self.size, CHUNK))
            offset = tirx.Select(valid > 0, offset + step * self.depth, int32(0))
        else:
            offset = offset + step * self.depth
        self._chunk(shared, at, self.buffer, offset, valid, self.width, when)


class Columns(Source):
    """A matrix [length, extent] whose rows lie across the reduction: tiles of ``depth`` rows."""

    def __init__(
        self, k: Kernel, buffer: Any, offset: Any, stride: int, first: Any, extent: int, columns: int,
        length: int, depth: int, size: int, aligned: int = CHUNK,
    ):  # fmt: skip
        super().__init__(k, size)
        self.buffer, self.offset, self.stride = buffer, offset, stride
        self.first, self.extent, self.columns = first, extent, columns
        self.length, self.lines, self.pitch = length, depth, columns * size
        self.width = math.gcd(stride * size, aligned, CHUNK)

    def _place(self, line: Any, chunk: Any) -> Any:
        return chunk ^ depth_key(line, self.size)

    def _base(self, line: Any, chunk: Any) -> Any:
        column = device.fixed(self.k, self.first + chunk * (CHUNK // self.size))
        valid: Any = int32(CHUNK)
        if self.extent % self.columns:
            valid = device.fixed(self.k, clamp((self.extent - column) * self.size, CHUNK))
        return device.fixed(self.k, self.offset + line * self.stride + column), valid

    def _prepare(self, line: Any, chunk: Any, base: Any, further: int) -> Any:
        offset, valid = base
        return offset + further * self.stride, line + further, valid

    def _copy(self, shared: Any, at: Any, prepared: Any, step: Any, when: Any) -> None:
        offset, line, valid = prepared
        offset = offset + step * self.lines * self.stride
        if self.length % self.lines:
            valid = device.fixed(self.k, tirx.Select(step * self.lines + line < self.length, valid, int32(0)))
        if not isinstance(valid, tirx.IntImm):
            offset = tirx.Select(valid > 0, offset, int32(0))
        self._chunk(shared, at, self.buffer, offset, valid, self.width, when)


def clamp(value: Expr, most: int) -> Expr:
    """``value`` limited to 0 .. ``most``."""
    return tirx.min(tirx.max(value, int32(0)), int32(most))
