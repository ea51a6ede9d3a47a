"""Programs of the NPU: stages, and the values that they compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

FLOAT, INT = "float32", "int32"


@dataclass(frozen=True)
class Value:
    """A node of an expression; operators are the vector unit's.  Equal nodes are one value."""

    _parts: ClassVar[tuple[str, ...]] = ()

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values that the operator takes, in order."""
        return tuple(getattr(self, name) for name in self._parts)

    def mapped(self, change: Callable[[Load], Value]) -> Value:
        """The expression with every read replaced."""
        return replace(self, **{name: getattr(self, name).mapped(change) for name in self._parts})


@dataclass(frozen=True)
class Load(Value):
    """An affine access: buffer, first element, elements per step of every axis."""

    buffer: int
    base: int
    strides: tuple[int, ...]

    def mapped(self, change: Callable[[Load], Value]) -> Value:
        return change(self)


@dataclass(frozen=True)
class Const(Value):
    """An immediate."""

    value: float


@dataclass(frozen=True)
class Unary(Value):
    """``op(mul * x + add)``."""

    op: str
    x: Value
    mul: float = 1.0
    add: float = 0.0
    _parts = ("x",)


@dataclass(frozen=True)
class Binary(Value):
    """``op(a, b)``."""

    op: str
    a: Value
    b: Value
    _parts = ("a", "b")


@dataclass(frozen=True)
class Ternary(Value):
    """``op(a, b, c)``."""

    op: str
    a: Value
    b: Value
    c: Value
    _parts = ("a", "b", "c")


@dataclass(frozen=True)
class Convert(Value):
    """``x`` in another type."""

    dtype: str
    x: Value
    _parts = ("x",)


@dataclass(frozen=True)
class Buffer:
    """A tensor in DRAM, taken as flat memory."""

    shape: tuple[int, ...]
    dtype: str
    """Type that the host has it in."""
    wide: bool = False
    """Whether floats are kept in float32: results of sums, and single values."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Map:
    """``out[affine] = value`` in a box; with ``reduce`` ("sum", "max", "min") over the last axes of it."""

    extents: tuple[int, ...]
    out: Load
    value: Value
    reduce: str = ""
    reduced: int = 0
    """Number of axes, the last ones, that are reduced."""


@dataclass(frozen=True)
class Product:
    """``out = sum of a * b`` over the axes that ``out`` does not have (its strides are 0 there)."""

    extents: tuple[int, ...]
    out: Load
    a: Load
    b: Load
    reduced: int
    """Number of axes, the last ones, that are reduced."""


@dataclass(frozen=True)
class OuterLoop:
    """A loop around a gather: its extent, and elements per step in the table and in the result."""

    extent: int
    table_step: int
    out_step: int


@dataclass(frozen=True)
class Gather:
    """``out[outer, i, 0 : run] = table[outer, wrapped indices[i], 0 : run]``.

    Parameters
    ----------
    outer : the loops around.
    table, base, rows, pitch, run : its buffer, first element, rows, elements from row to row and of one row.
    count, indices, first : how many rows to take; the buffer of their indices, and the first of them.
    out, out_pitch : the result's buffer; elements from row to row of it.
    """

    outer: tuple[OuterLoop, ...]
    table: int
    base: int
    rows: int
    pitch: int
    run: int
    count: int
    indices: int
    first: int
    out: int
    out_pitch: int


Stage = Map | Product | Gather


@dataclass(frozen=True)
class Program:
    """Stages in order.  Buffers: ``inputs`` operands, then scratch tensors, last the result."""

    buffers: tuple[Buffer, ...]
    inputs: int
    stages: tuple[Stage, ...]

    @property
    def scratch(self) -> range:
        """Numbers of the scratch tensors."""
        return range(self.inputs, len(self.buffers) - 1)
