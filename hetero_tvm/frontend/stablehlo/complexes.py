"""Complex numbers as two tensors, their parts, and Fourier transforms as products with cosines and sines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import Nodes, Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op, dtype_of, reshaped, turned

Parts = tuple[str, str]
Plain = Mapping[str, Callable[[Op], str]]
Several = Mapping[str, Callable[[Op], Sequence[str]]]

_OF = {"complex<f32>": "float32", "complex<f64>": "float64"}
_BY_PARTS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "negate",
        "pad", "reshape", "reverse", "select", "slice", "subtract", "transpose",
    )
)  # fmt: skip
"""Operators that are the same for both parts."""
_WHOLE = 256
"""Values that are transformed by one matrix; more are divided into rows and columns, where they can be."""
_MOST = 4096
"""Values that are transformed by one matrix where their number has no divisors."""


def is_complex(kind: Any) -> bool:
    """Whether an MLIR type is one of complex tensors."""
    return str(getattr(kind, "element_type", "")) in _OF


def has_complex(raw: Any) -> bool:
    """Whether an operator reads or gives complex tensors."""
    return any(is_complex(value.type) for value in (*raw.operands, *raw.results))


class _Part(Op):
    """An operator on complex tensors, for one of their parts."""

    def dtype(self, index: int = 0) -> str:
        return part_dtype(self.raw.operands[index].type)

    @property
    def result_dtype(self) -> str:
        return part_dtype(self.raw.results[0].type)


def part_dtype(kind: Any) -> str:
    """NumPy name of the type of each part of a complex tensor, or of a real tensor's numbers."""
    return _OF.get(str(kind.element_type)) or dtype_of(kind)


def translated(op: Op, parts: dict[str, Parts], plain: Plain, several: Several) -> Sequence[str]:
    """Names of an operator's results; those of complex ones stand for what ``parts`` tells.

    Parameters
    ----------
    plain, several : translations of operators for real tensors, of one result and of several.
    """
    kind = op.name
    op = _Part(**{field.name: getattr(op, field.name) for field in dataclasses.fields(op)})
    given = [parts.get(name, (name, "")) for name in op.inputs]
    if kind in _BY_PARTS or (kind == "stablehlo.reduce" and _adds(op)):
        if not any(name in parts for name in op.inputs):
            raise Untranslatable("no translation for complex numbers")
        sides: list[Sequence[str]] = []
        for side in (0, 1):
            names = [parts[name][side] if name in parts else name for name in op.inputs]
            one = dataclasses.replace(op, inputs=names)
            sides.append([plain[kind](one)] if kind in plain else several[kind](one))
        return [_named(op, parts, pair) for pair in zip(*sides, strict=True)]
    if kind in _WITH_REAL:
        found = _WITH_REAL[kind](plain, op, *given)
    elif kind in _TRANSLATIONS:
        found = _TRANSLATIONS[kind](op, *given)
    else:
        raise Untranslatable("no translation for complex numbers")
    return [found] if isinstance(found, str) else [_named(op, parts, found)]


def _adds(op: Op) -> bool:
    """Whether a reduction is a sum."""
    inside = [str(one.operation.name) for one in op.raw.regions[0].blocks[0].operations]
    return len(op.raw.results) == 1 and inside == ["stablehlo.add", "stablehlo.return"]


def constant(nodes: Nodes, parts: dict[str, Parts], values: np.ndarray) -> str:
    """Name of a complex constant, of real and imaginary parts."""
    name = nodes.fresh()
    real, imaginary = (nodes.constant(np.array(part), part.dtype) for part in values)
    parts[name] = (real, imaginary)
    return name


def _named(op: Op, parts: dict[str, Parts], pair: Parts) -> str:
    name = op.nodes.fresh()
    parts[name] = pair
    return name


def _multiply(op: Op, x: Parts, y: Parts) -> Parts:
    (a, b), (c, d) = x, y
    real = op.emit("Sub", op.emit("Mul", a, c), op.emit("Mul", b, d))
    return real, op.emit("Add", op.emit("Mul", a, d), op.emit("Mul", b, c))


def _is_zero(op: Op, name: str) -> bool:
    """Whether a tensor is known to be zero."""
    maker = op.nodes.maker(name)
    while maker is not None and maker.op_type in ("Expand", "Reshape", "Identity"):
        name = maker.input[0]
        maker = op.nodes.maker(name)
    value = op.nodes.value(name)
    return value is not None and not value.any()


def _divide(op: Op, x: Parts, y: Parts) -> Parts:
    """A quotient by Smith's method: of the divisor's parts, the smaller is divided by the larger."""
    (a, b), (c, d) = x, y
    if _is_zero(op, d):
        return op.emit("Div", a, c), op.emit("Div", b, c)
    is_wide = op.emit("GreaterOrEqual", op.emit("Abs", c), op.emit("Abs", d))
    large, small = op.emit("Where", is_wide, c, d), op.emit("Where", is_wide, d, c)
    ratio = op.emit("Div", small, large)
    divisor = op.emit("Add", large, op.emit("Mul", small, ratio))
    first, second = op.emit("Where", is_wide, a, b), op.emit("Where", is_wide, b, a)
    real = op.emit("Add", first, op.emit("Mul", second, ratio))
    imaginary = op.emit("Sub", second, op.emit("Mul", first, ratio))
    imaginary = op.emit("Where", is_wide, imaginary, op.emit("Neg", imaginary))
    return op.emit("Div", real, divisor), op.emit("Div", imaginary, divisor)


def _size(op: Op, x: Parts) -> str:
    """The absolute value, without squares that overflow."""
    one, two = (op.emit("Abs", part) for part in x)
    high, low = op.emit("Max", one, two), op.emit("Min", one, two)
    dtype = op.dtype()
    is_zero = op.emit("Equal", high, op.const(0, dtype))
    ratio = op.emit("Div", low, op.emit("Where", is_zero, op.const(1, dtype), high))
    root = op.emit("Sqrt", op.emit("Add", op.emit("Mul", ratio, ratio), op.const(1, dtype)))
    return op.emit("Where", op.emit("IsInf", high), high, op.emit("Mul", high, root))


def _exponential(op: Op, x: Parts) -> Parts:
    size = op.emit("Exp", x[0])
    return op.emit("Mul", size, op.emit("Cos", x[1])), op.emit("Mul", size, op.emit("Sin", x[1]))


def _root(op: Op, x: Parts) -> Parts:
    """The root whose real part is not negative."""
    (real, imaginary), dtype = x, op.dtype()
    zero, half = op.const(0, dtype), op.const(0.5, dtype)
    both = op.emit("Add", _size(op, x), op.emit("Abs", real))
    long = op.emit("Sqrt", op.emit("Mul", both, half))
    is_zero = op.emit("Equal", long, zero)
    twice = op.emit("Where", is_zero, op.const(1, dtype), op.emit("Add", long, long))
    short = op.emit("Div", op.emit("Abs", imaginary), twice)
    is_left = op.emit("Less", real, zero)
    found = op.emit("Where", is_left, long, short)
    below = op.emit("Less", imaginary, zero)
    return op.emit("Where", is_left, short, long), op.emit("Where", below, op.emit("Neg", found), found)


def _equal(op: Op, x: Parts, y: Parts) -> str:
    both = op.emit("And", *(op.emit("Equal", a, b) for a, b in zip(x, y, strict=True)))
    return op.emit("Not", both) if "NE" in op.text("comparison_direction") else both


def _converted(op: Op, x: Parts) -> Parts:
    to = onnx_type(op.result_dtype)
    real = op.emit("Cast", x[0], to=to)
    imaginary = op.emit("Cast", x[1], to=to) if x[1] else _zeros(op, real)
    return real, imaginary


def _zeros(op: Op, like: str) -> str:
    return op.emit("Expand", op.const(0, op.result_dtype), op.emit("Shape", like))


def _dot(plain: Plain, op: Op, x: Parts, y: Parts) -> Parts:
    """``dot_general`` by four real products."""

    def product(one: str, other: str) -> str:
        return plain["stablehlo.dot_general"](dataclasses.replace(op, inputs=[one, other]))

    real = op.emit("Sub", product(x[0], y[0]), product(x[1], y[1]))
    return real, op.emit("Add", product(x[0], y[1]), product(x[1], y[0]))


def _fourier(op: Op, x: Parts) -> Parts | str:
    """``fft`` along the last axes."""
    kind = op.text("fft_type")
    lengths = op.ints("fft_length")
    rank = len(op.shape())
    axes = list(range(rank - len(lengths), rank))
    if "IRFFT" in kind:
        for axis in axes[:-1]:
            x = _along(op, x, op.shape(), axis, inverse=True)
        return _to_real(op, x, lengths[-1])
    if "RFFT" in kind:
        shape = op.shape()
        found = _along(op, (x[0], ""), shape, axes[-1], inverse=False)
        kept = shape[-1] // 2 + 1
        ends = [op.const([0]), op.const([kept]), op.const([-1])]
        x = (op.emit("Slice", found[0], *ends), op.emit("Slice", found[1], *ends))
        shape = (*shape[:-1], kept)
        axes = axes[:-1]
    else:
        shape = op.shape()
    for axis in reversed(axes):
        x = _along(op, x, shape, axis, inverse="IFFT" in kind)
    return x


def _along(op: Op, x: Parts, shape: Sequence[int], axis: int, *, inverse: bool) -> Parts:
    """A transform along one axis, divided by the number of values where it is the inverse."""
    last = len(shape) - 1
    order = [i for i in range(last + 1) if i != axis] + [axis]
    back = [order.index(i) for i in range(last + 1)]
    x = _each(x, lambda part: turned(op, part, order))
    x = _transformed(op, x, [shape[i] for i in order], inverse)
    if inverse:
        factor = op.const(1.0 / shape[axis], op.dtype())
        x = _each(x, lambda part: op.emit("Mul", part, factor))
    return _each(x, lambda part: turned(op, part, back))


def _each(x: Parts, step: Callable[[str], str]) -> Parts:
    """Both parts after a step; a part that is all zeros has no name."""
    real, imaginary = (step(part) if part else "" for part in x)
    return real, imaginary


def _transformed(op: Op, x: Parts, shape: Sequence[int], inverse: bool) -> Parts:
    """A transform of the last axis."""
    *lead, size = shape
    rows = next((n for n in range(math.isqrt(size), 3, -1) if size % n == 0), 1) if size > _WHOLE else 1
    if rows == 1 and size > _MOST:
        raise Untranslatable(f"a transform of {size} values, a number without divisors for rows and columns")
    if rows == 1:
        return _by_matrix(op, x, _turns(np.outer(np.arange(size), np.arange(size)), size, inverse))
    columns, rank = size // rows, len(lead)
    swap = [*range(rank), rank + 1, rank]
    x = _each(x, lambda part: turned(op, reshaped(op, part, [*lead, rows, columns]), swap))
    x = _transformed(op, x, [*lead, columns, rows], inverse)
    waves = _turns(np.outer(np.arange(columns), np.arange(rows)), size, inverse)
    dtype = op.dtype()
    x = _multiply(op, x, (op.const(waves.real, dtype), op.const(waves.imag, dtype)))
    x = _each(x, lambda part: turned(op, part, swap))
    x = _transformed(op, x, [*lead, rows, columns], inverse)
    return _each(x, lambda part: reshaped(op, turned(op, part, swap), shape))


def _turns(places: np.ndarray, size: int, inverse: bool) -> np.ndarray:
    """Powers of the root of unity; whole turns are left out first, in whole numbers."""
    angles = (places % size) * (2 * math.pi / size)
    return np.exp((1j if inverse else -1j) * angles)


def _by_matrix(op: Op, x: Parts, waves: np.ndarray) -> Parts:
    dtype = op.dtype()
    cosines, sines = op.const(waves.real, dtype), op.const(waves.imag, dtype)
    real, imaginary = op.emit("MatMul", x[0], cosines), op.emit("MatMul", x[0], sines)
    if x[1]:
        real = op.emit("Sub", real, op.emit("MatMul", x[1], sines))
        imaginary = op.emit("Add", imaginary, op.emit("MatMul", x[1], cosines))
    return real, imaginary


def _to_real(op: Op, x: Parts, size: int) -> str:
    """Real values of a half of their spectrum, which is mirrored first."""
    places = np.arange(size)
    is_mirrored = places > size // 2
    here = op.const(np.where(is_mirrored, size - places, places))
    real, imaginary = (op.emit("Gather", part, here, axis=-1) for part in x)
    imaginary = op.emit("Mul", imaginary, op.const(np.where(is_mirrored, -1.0, 1.0), op.dtype()))
    shape = [*op.shape()[:-1], size]
    return _along(op, (real, imaginary), shape, len(shape) - 1, inverse=True)[0]


def _logarithm(plain: Plain, op: Op, x: Parts) -> Parts:
    angle = plain["stablehlo.atan2"](dataclasses.replace(op, inputs=[x[1], x[0]]))
    return op.emit("Log", _size(op, x)), angle


_TRANSLATIONS: dict[str, Callable[..., Parts | str]] = {
    "chlo.square": lambda op, x: _multiply(op, x, x),
    "stablehlo.abs": _size,
    "stablehlo.compare": _equal,
    "stablehlo.complex": lambda op, x, y: (x[0], y[0]),
    "stablehlo.convert": _converted,
    "stablehlo.divide": _divide,
    "stablehlo.exponential": _exponential,
    "stablehlo.fft": _fourier,
    "stablehlo.imag": lambda op, x: x[1],
    "stablehlo.multiply": _multiply,
    "stablehlo.real": lambda op, x: x[0],
    "stablehlo.sqrt": _root,
}
"""Translations by parts; those of real tensors have an empty second one."""

_WITH_REAL: dict[str, Callable[..., Parts]] = {
    "stablehlo.dot_general": _dot,
    "stablehlo.log": _logarithm,
}
"""Translations that make use of those of real tensors."""
