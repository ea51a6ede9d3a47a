"""Sources of the tiles of a product: copies of 16 bytes from global to shared memory.

A source emits, for one step of the reduction, what each thread copies.  Addresses that do not change
from step to step are computed once.  Rows beyond the end read the last row again (their results are not
stored); values beyond the end of the reduction read as zeros, and cost a test only where the length is
no multiple of the tile's depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, tirx
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

    def begin(self, thread: Expr, threads: int) -> None:
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

    def copy(self, shared: Expr, at: Expr, step: Expr, when: Expr | None = None) -> None:
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

    def _place(self, line: Expr, chunk: Expr) -> Expr:
        return swizzled(line, chunk, self.pitch)

    def _base(self, line: Expr, chunk: Expr) -> Any:
        """Values that the copies of a thread share when they are whole numbers of lines apart."""
        return None

    def _prepare(self, line: Expr, chunk: Expr, base: Any, further: int) -> Any:
        """Values for the copy of a chunk ``further`` lines below ``line``, which has ``base``."""
        raise NotImplementedError

    def _copy(self, shared: Expr, at: Expr, prepared: Any, step: Expr, when: Expr | None) -> None:
        raise NotImplementedError

    def _chunk(
        self, shared: Expr, at: Expr, buffer: Buffer, offset: Expr, valid: Expr, width: int, when: Expr | None
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


@dataclass(frozen=True)
class Matrix:
    """A matrix in global memory.

    Parameters
    ----------
    buffer : flat; ``offset`` is the first element.
    stride : elements from row to row.
    aligned : bytes that the matrix starts at a multiple of; 16 at most count.
    """

    buffer: Buffer
    offset: Expr | int
    stride: int
    aligned: int = CHUNK


@dataclass(frozen=True)
class Part:
    """Rows (of X) or columns (of W) of a tile.

    Parameters
    ----------
    first : of the tile.
    extent : of the matrix; None for at least as many as tiles read.
    count : of the tile.
    """

    first: Expr
    extent: int | None
    count: int


@dataclass(frozen=True)
class Reduction:
    """``length`` values, ``depth`` of them a step."""

    length: int
    depth: int


class MatrixSource(Source):
    """A source that lies in memory as a matrix."""

    def __init__(self, k: Kernel, matrix: Matrix, part: Part, reduction: Reduction, size: int):
        super().__init__(k, size)
        self.matrix, self.part, self.reduction = matrix, part, reduction
        self.width = math.gcd(matrix.stride * size, matrix.aligned, CHUNK)


class Rows(MatrixSource):
    """A matrix [rows or columns of the product, length] whose rows lie along the reduction."""

    def __init__(self, k: Kernel, matrix: Matrix, part: Part, reduction: Reduction, size: int):
        super().__init__(k, matrix, part, reduction, size)
        self.lines, self.pitch = part.count, reduction.depth * size

    def _base(self, line: Expr, chunk: Expr) -> tuple[Expr, Expr]:
        matrix, column = self.matrix, device.fixed(self.k, chunk * (CHUNK // self.size))
        row = self.part.first + line
        return column, device.fixed(self.k, matrix.offset + row * matrix.stride + column)

    def _prepare(self, line: Expr, chunk: Expr, base: tuple[Expr, Expr], further: int) -> tuple[Expr, Expr]:
        matrix, part = self.matrix, self.part
        column, offset = base
        if part.extent is not None and part.extent % part.count:
            row = tirx.min(part.first + line + further, int32(part.extent - 1))
            return device.fixed(self.k, matrix.offset + row * matrix.stride + column), column
        return offset + further * matrix.stride, column

    def _copy(
        self, shared: Expr, at: Expr, prepared: tuple[Expr, Expr], step: Expr, when: Expr | None
    ) -> None:
        length, depth = self.reduction.length, self.reduction.depth
        offset, column = prepared
        valid: Expr = int32(CHUNK)
        if length % depth:
            valid = device.fixed(self.k, clamp((length - step * depth - column) * self.size, CHUNK))
            offset = tirx.Select(valid > 0, offset + step * depth, int32(0))
        else:
            offset = offset + step * depth
        self._chunk(shared, at, self.matrix.buffer, offset, valid, self.width, when)


class Columns(MatrixSource):
    """A matrix [length, columns of the product] whose rows lie across the reduction."""

    def __init__(self, k: Kernel, matrix: Matrix, part: Part, reduction: Reduction, size: int):
        super().__init__(k, matrix, part, reduction, size)
        self.lines, self.pitch = reduction.depth, part.count * size

    def _place(self, line: Expr, chunk: Expr) -> Expr:
        return chunk ^ depth_key(line, self.size)

    def _base(self, line: Expr, chunk: Expr) -> tuple[Expr, Expr]:
        matrix, part = self.matrix, self.part
        column = device.fixed(self.k, part.first + chunk * (CHUNK // self.size))
        valid: Expr = int32(CHUNK)
        if part.extent is not None and part.extent % part.count:
            valid = device.fixed(self.k, clamp((part.extent - column) * self.size, CHUNK))
        return device.fixed(self.k, matrix.offset + line * matrix.stride + column), valid

    def _prepare(
        self, line: Expr, chunk: Expr, base: tuple[Expr, Expr], further: int
    ) -> tuple[Expr, Expr, Expr]:
        offset, valid = base
        return offset + further * self.matrix.stride, line + further, valid

    def _copy(
        self, shared: Expr, at: Expr, prepared: tuple[Expr, Expr, Expr], step: Expr, when: Expr | None
    ) -> None:
        offset, line, valid = prepared
        offset = offset + step * self.lines * self.matrix.stride
        if self.reduction.length % self.lines:
            inside = step * self.lines + line < self.reduction.length
            valid = device.fixed(self.k, tirx.Select(inside, valid, int32(0)))
        if not isinstance(valid, tirx.IntImm):
            offset = tirx.Select(valid > 0, offset, int32(0))
        self._chunk(shared, at, self.matrix.buffer, offset, valid, self.width, when)


def clamp(value: Expr, most: int) -> Expr:
    """``value`` limited to 0 .. ``most``."""
    return tirx.min(tirx.max(value, int32(0)), int32(most))
