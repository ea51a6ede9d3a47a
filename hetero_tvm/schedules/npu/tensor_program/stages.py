"""What a program is made of: stages, and the expressions that they compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Expr = tuple[Any, ...]
"""A node: ``("load", Load)``, ``("const", value)``, ``("unary", op, mul, add, x)``,
``("binary", op, a, b)``, ``("ternary", op, a, b, c)``, ``("convert", dtype, x)``; operators are the vector
unit's.  Equal nodes are one value."""

FLOAT, INT = "float32", "int32"


@dataclass(frozen=True)
class Load:
    """An affine access: buffer, first element, elements per step of every axis."""

    buffer: int
    base: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """A tensor in DRAM, taken as flat memory."""

    shape: tuple[int, ...]
    dtype: str
    """As the host has it."""
    wide: bool = False
    """Floats are kept in float32: results of sums, and single values."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Map:
    """``out[affine] = expr`` in a box; with ``reduce`` ("sum", "max", "min") over the last axes of it."""

    extents: tuple[int, ...]
    out: Load
    expr: Expr
    reduce: str = ""
    reduced: int = 0
    """How many of the axes, the last ones, are reduced."""


@dataclass(frozen=True)
class Product:
    """``out = sum of a * b`` over the axes that ``out`` does not have (its strides are 0 there)."""

    extents: tuple[int, ...]
    out: Load
    a: Load
    b: Load
    reduced: int


@dataclass(frozen=True)
class Gather:
    """``out[outer, i, 0 : run] = table[outer, wrapped indices[i], 0 : run]``.

    Parameters
    ----------
    outer : (extent, elements per step in the table, in ``out``) of the loops around.
    table, rows, pitch, run : its buffer, first element, rows, elements from row to row and of one row.
    count, indices, first : how many rows to take; the buffer of their indices, and the first of them.
    out, out_pitch : the result's buffer; elements from row to row of it.
    """

    outer: tuple[tuple[int, int, int], ...]
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
    """Stages in order.  Buffers: the inputs, then scratch tensors, last the result."""

    buffers: tuple[Buffer, ...]
    inputs: int
    stages: tuple[Stage, ...]

    @property
    def scratch(self) -> range:
        return range(self.inputs, len(self.buffers) - 1)
