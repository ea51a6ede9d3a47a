"""One StableHLO operator while it is translated, and what all translations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import Nodes, Untranslatable, onnx_type

_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i1": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
}  # fmt: skip

_NARROW = {
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E4M3B11FNUZ": "float8_e4m3b11fnuz", "f8E4M3": "float8_e4m3",
    "f8E3M4": "float8_e3m4", "f4E2M1FN": "float4_e2m1fn", "f6E2M3FN": "float6_e2m3fn",
    "f6E3M2FN": "float6_e3m2fn", "i2": "int2", "ui2": "uint2", "i4": "int4", "ui4": "uint4",
}  # fmt: skip
"""Names that ml_dtypes has for types that no kernel knows."""


_MOVES = frozenset({"stablehlo.reshape", "stablehlo.while", "stablehlo.case", "stablehlo.if"})
"""Operators that bodies of numbers may hold, but whose translation differs for whole tensors."""


@dataclass(frozen=True)
class Written:
    """A tensor of which one window was written.

    Parameters
    ----------
    data, view : the tensor before, and the form in which the write reads it.
    update, kind, sizes : what was written, its type, and its extents.
    starts : the window's place, by axis.
    """

    data: str
    view: str
    update: str
    kind: Any
    sizes: Sequence[int]
    starts: Sequence[str]


@dataclass(frozen=True)
class Op:
    """One operator while it is translated.

    Parameters
    ----------
    raw : the MLIR operation.
    inputs : ONNX names of its operands.
    nodes : where its nodes go.
    dialects : the module ``jaxlib.mlir.dialects.stablehlo``.
    region : results of one of its regions, translated for these arguments.
    written : tensors of which one window was written, by name.
    """

    raw: Any
    inputs: Sequence[str]
    nodes: Nodes
    dialects: Any
    region: Callable[[int, Sequence[str]], Sequence[str]]
    written: dict[str, Written]

    @property
    def name(self) -> str:
        return str(self.raw.operation.name)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an operand."""
        return shape_of(self.raw.operands[index].type)

    def dtype(self, index: int = 0) -> str:
        """NumPy name of an operand's type."""
        return dtype_of(self.raw.operands[index].type)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return shape_of(self.raw.results[0].type)

    @property
    def result_dtype(self) -> str:
        return dtype_of(self.raw.results[0].type)

    def combined(self, operands: Sequence[str], region: int = 0) -> Sequence[str]:
        """Results of a region of numbers (the body of a reduction, a comparison) for whole tensors."""
        block = self.raw.regions[region].blocks[0]
        for inner in block.operations:
            kind, types = str(inner.operation.name), [value.type for value in inner.results]
            if kind in _MOVES or any(tuple(one.shape) for one in types):
                raise Untranslatable(f"a body with {kind}")
        return self.region(region, operands)

    def whole(self, name: str) -> str:
        """Whole numbers of any type as int64."""
        return self.emit("Cast", name, to=onnx_type("int64"))

    def has(self, name: str) -> bool:
        return name in self.raw.attributes

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of numbers among the attributes, flat."""
        if name not in self.raw.attributes:
            if default is None:
                raise Untranslatable(f"no {name}")
            return list(default)
        value = self.raw.attributes[name]
        try:
            return [int(x) for x in value]
        except TypeError:
            return [int(x) for x in np.asarray(value).reshape(-1)]

    def text(self, name: str) -> str:
        """An attribute as MLIR writes it."""
        return str(self.raw.attributes[name]) if name in self.raw.attributes else ""

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.nodes.emit(kind, *inputs, **attributes)

    def const(self, value: Any, dtype: str = "int64") -> str:
        return self.nodes.constant(value, dtype)


def shape_of(kind: Any) -> tuple[int, ...]:
    """Dimensions of an MLIR tensor type; :class:`Untranslatable` where one is open."""
    shape = tuple(kind.shape)
    if any(extent < 0 for extent in shape):
        raise Untranslatable(f"the open shape {kind}")
    return shape


def dtype_of(kind: Any) -> str:
    """NumPy name of an MLIR tensor's element type, or of the type that carries its numbers."""
    element = str(kind.element_type)
    if element in _NARROW:
        return carried(_NARROW[element])
    if element not in _DTYPES:
        raise Untranslatable(f"numbers of type {element}")
    return _DTYPES[element]


def narrow_of(kind: Any) -> str | None:
    """Name in ml_dtypes of an MLIR tensor's element type, where others carry its numbers."""
    return _NARROW.get(str(kind.element_type))


def carried(kind: str) -> str:
    """NumPy name of the type that carries numbers of type ``kind`` of ml_dtypes."""
    if kind.startswith("float"):
        return "float32"
    return "uint8" if kind.startswith("u") else "int8"


def reshaped(op: Op, name: str, shape: Sequence[int]) -> str:
    """A tensor in another shape."""
    return op.emit("Reshape", name, op.const(list(shape)))


def turned(op: Op, name: str, order: Sequence[int]) -> str:
    """A tensor with its axes in another order."""
    return name if list(order) == list(range(len(order))) else op.emit("Transpose", name, perm=list(order))
