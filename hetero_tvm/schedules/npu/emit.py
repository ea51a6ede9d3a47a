"""A small layer over TVM's IRBuilder in which NPU kernels are written.

A kernel is TensorIR: loops over tiles, buffers in the scopes of the scratchpads, and loop nests
around one store each that are marked (``npu.op``) as *one instruction*.  The body of such a nest
says in scalars what the instruction computes, with its rounding, so the same function also compiles
with LLVM and runs on a CPU; the code generator takes the operation from the annotations, and bases,
extents and strides from the indices.

Annotations of loops:

- ``npu.op`` : this and the loops directly inside are one instruction of that name;
- ``npu.fields`` : fields of it that no index shows (the function of a vector instruction, ...);
- ``npu.loops`` : how many loops are the instruction's;
- ``npu.buffers`` : the buffers that the body allocates exist so often, and iterations take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, T, tirx
from hetero_tvm.schedules.emit import FunctionBuilder, Index

IndexMap = Callable[..., Sequence[Index]]
"""Indices of an element by the loops of an instruction."""
DRAM = "global"
L1, L0A, L0B, L0C, UB = (f"global.{name}" for name in ("l1", "l0a", "l0b", "l0c", "ub"))


@dataclass(frozen=True)
class At:
    """A strided region: the element of ``buffer`` that an instruction touches at each of its loops."""

    buffer: Buffer
    index: IndexMap


Source = At | float
"""A region, or an immediate."""


class Kernel(FunctionBuilder):
    """A kernel of tiles in scratchpads and NPU instructions.

    Parameters that :meth:`argument` declares lie in DRAM, or in L1 for a chain that stays on chip.
    """

    def alloc(self, scope: str, shape: Sequence[int], dtype: str) -> Buffer:
        """A buffer in a scratchpad, alive for the enclosing loop."""
        return T.alloc_buffer(tuple(shape), dtype, scope=scope)

    @contextmanager
    def loop(self, extent: Index, buffers: int = 1) -> Iterator[Expr]:
        """Tiles in turn; ``buffers`` versions of what the body allocates let iterations overlap."""
        with T.serial(0, extent, annotations={"npu.buffers": buffers}) as i:
            yield i

    # instructions ------------------------------------------------------------------------------
    @contextmanager
    def _nest(
        self, op: str, extents: Sequence[Index], fields: Mapping[str, Any] | None = None
    ) -> Iterator[list[Expr]]:
        marks = {"npu.op": op, "npu.loops": len(extents), "npu.fields": dict(fields or {})}
        with ExitStack() as stack:
            frames = [T.serial(0, extents[0], annotations=marks), *(T.serial(0, e) for e in extents[1:])]
            yield [stack.enter_context(frame) for frame in frames]

    def _copy(self, op: str, extents: Sequence[Index], dst: At, src: At) -> None:
        with self._nest(op, extents) as i:
            T.buffer_store(dst.buffer, src.buffer[tuple(src.index(*i))], list(dst.index(*i)))

    def load(self, extents: Sequence[Index], dst: At, src: At) -> None:
        """DRAM -> L1 or UB."""
        self._copy("load", extents, dst, src)

    def load_padded(
        self, extents: Sequence[Index], dst: At, src: At, inside: IndexMap, fill: float = 0.0
    ) -> None:
        """DRAM -> L1 or UB, where the conditions ``inside`` hold (one loop each); ``fill`` elsewhere."""
        dtype = str(src.buffer.dtype)
        with self._nest("load", extents, {"fill": _bits(fill, dtype)}) as i:
            value = src.buffer[tuple(src.index(*i))]
            padded = tirx.if_then_else(tirx.all(*inside(*i)), value, tirx.const(fill, dtype))
            T.buffer_store(dst.buffer, padded, list(dst.index(*i)))

    def gather(
        self,
        extents: Sequence[Index],
        dst: At,
        indices: Buffer,
        table: Buffer,
        first: Index,
        pitch: int,
        rows: int,
        skip: Index = 0,
    ) -> None:
        """Rows of a flat ``table`` in DRAM -> L1 or UB, loops (row, element): row r begins at element
        ``first + indices[skip + r] * pitch``; ``indices`` is an int32 buffer in UB, each from 0 to
        ``rows`` - 1."""
        fields = {"first": first, "pitch": pitch, "rows": rows}
        with self._nest("gather", extents, fields) as (i, j):
            value = table[(first + indices[(skip + i,)] * pitch + j,)]
            T.buffer_store(dst.buffer, value, list(dst.index(i, j)))

    def fill(self, extents: Sequence[Index], dst: At, value: float) -> None:
        """A constant into UB."""
        self.unary("copy", extents, dst, float(value))

    def store(self, extents: Sequence[Index], dst: At, src: At) -> None:
        """UB -> DRAM or L1."""
        self._copy("store", extents, dst, src)

    def move(self, extents: Sequence[Index], dst: At, src: At) -> None:
        """L1 -> L0A or L0B."""
        self._copy("move", extents, dst, src)

    def fill_operand(self, extents: Sequence[Index], dst: At, value: float, via: Buffer) -> None:
        """A constant into L0A or L0B: a move of nothing but padding, from a buffer in L1."""
        dtype = str(dst.buffer.dtype)
        with self._nest("move", extents, {"fill": _bits(value, dtype)}) as i:
            never = tirx.if_then_else(i[0] < 0, via[(0,) * len(via.shape)], tirx.const(value, dtype))
            T.buffer_store(dst.buffer, never, list(dst.index(*i)))

    def mmad(self, extents: Sequence[Index], c: At, a: At, b: At, first: Expr | bool) -> None:
        """``c[m, n] += a[m, k] * b[k, n]``, from zero when ``first``; loops (m, n, k)."""
        with self._nest("mmad", extents, {"first": first}) as (i, j, r):
            at = list(c.index(i, j, r))
            old = c.buffer[tuple(at)]
            fresh = tirx.all(first, r == 0) if not isinstance(first, bool) else (r == 0 if first else None)
            start = old if fresh is None else tirx.Select(fresh, tirx.const(0, c.buffer.dtype), old)
            wide = str(c.buffer.dtype)
            product = _cast(a.buffer[tuple(a.index(i, j, r))], wide) * _cast(
                b.buffer[tuple(b.index(i, j, r))], wide
            )
            T.buffer_store(c.buffer, start + product, at)

    def im2col(self, extents: Sequence[Index], dst: At, image: At, geometry: Mapping[str, Any]) -> None:
        """Patches of an image [rows, width, channels] in L1 -> L0A, loops (pixel, tap element).

        ``geometry``: the instruction's fields; those that vary (m_start, pad_top, height) may be
        expressions of the tile loops.
        """
        g = geometry
        with self._nest("im2col", extents, g) as (i, j):
            pixel, element = i + g["m_start"], j + g["k_start"]
            tap, channel = element // g["channels"], element % g["channels"]
            y = pixel // g["out_width"] * g["stride_h"] - g["pad_top"]
            y = y + tap // g["kernel_w"] * g["dilation_h"]
            x = pixel % g["out_width"] * g["stride_w"] - g["pad_left"]
            x = x + tap % g["kernel_w"] * g["dilation_w"]
            inside = tirx.all(y >= 0, y < g["height"], x >= 0, x < g["width"])
            value = image.buffer[tuple(image.index(y, x, channel))]
            outside = tirx.const(_signed(g.get("fill", 0)), image.buffer.dtype)
            T.buffer_store(dst.buffer, tirx.if_then_else(inside, value, outside), list(dst.index(i, j)))

    def move_out(
        self,
        extents: Sequence[Index],
        dst: At,
        c: At,
        *,
        scale: float | At | None = None,
        bias: At | None = None,
        residual: At | None = None,
        relu: bool = False,
        zero_point: int = 0,
    ) -> None:
        """L0C -> UB: times ``scale`` (one, or [n]), plus ``bias`` [n], plus ``residual`` [m, n] in L1 or UB,
        relu, rounded; loops (m, n).

        Of int32 accumulators an int32 bias is added before the scale; ``zero_point`` after rounding.
        """
        mode = "column" if isinstance(scale, At) else "none" if scale is None else "immediate"
        fields = {"relu": "yes" if relu else "no", "scale_mode": mode, "zero_point": zero_point}
        if isinstance(scale, float):
            fields["scale"] = scale
        if residual is not None:
            fields["residual"] = "yes"
        with self._nest("move_out", extents, fields) as i:
            value = c.buffer[tuple(c.index(*i))]
            whole = bias is not None and str(bias.buffer.dtype) == "int32"
            if whole:
                value = value + bias.buffer[tuple(bias.index(*i))]
            if isinstance(scale, At):
                value = _cast(value, "float32") * scale.buffer[tuple(scale.index(*i))]
            elif scale is not None:
                value = _cast(value, "float32") * tirx.const(scale, "float32")
            if bias is not None and not whole:
                value = value + _cast(bias.buffer[tuple(bias.index(*i))], str(value.ty.dtype))
            if residual is not None:
                value = _cast(value, "float32") + _cast(residual.buffer[tuple(residual.index(*i))], "float32")
            if relu:
                value = tirx.max(value, tirx.const(0, value.ty.dtype))
            dtype = str(dst.buffer.dtype)
            if dtype == "int8":
                value = tirx.nearbyint(_cast(value, "float32")) + tirx.const(float(zero_point), "float32")
                value = tirx.max(tirx.min(value, tirx.const(127.0, "float32")), tirx.const(-128.0, "float32"))
            T.buffer_store(dst.buffer, _cast(value, dtype), list(dst.index(*i)))

    def unary(
        self, op: str, extents: Sequence[Index], dst: At, src: Source, mul: float = 1.0, add: float = 0.0
    ) -> None:
        """``dst = op(mul * src + add)``; an immediate source with ``copy`` fills."""
        if not isinstance(src, At):
            mul, add = float(src), 0.0
        with self._nest("vunary", extents, {"op": op, "mul": float(mul), "add": float(add)}) as i:
            if isinstance(src, At):
                value = self._read(src, i)
                if mul != 1.0 or add != 0.0:
                    value = value * tirx.const(mul, "float32") + tirx.const(add, "float32")
            else:
                value = tirx.const(mul, "float32")
            self._write(dst, i, _UNARY[op](value))

    def binary(self, op: str, extents: Sequence[Index], dst: At, a: Source, b: Source) -> None:
        """``dst = op(a, b)``; one of the sources may be an immediate."""
        fields: dict[str, Any] = {"op": op}
        with self._nest("vbinary", extents, _with_immediates(fields, (a, b))) as i:
            self._write(dst, i, _BINARY[op](self._read(a, i), self._read(b, i)))

    def ternary(self, op: str, extents: Sequence[Index], dst: At, a: Source, b: Source, c: Source) -> None:
        """muladd: a * b + c; submul: (a - b) * c; add3; select: a != 0 ? b : c."""
        fields: dict[str, Any] = {"op": op}
        with self._nest("vternary", extents, _with_immediates(fields, (a, b, c))) as i:
            self._write(dst, i, _TERNARY[op](*(self._read(x, i) for x in (a, b, c))))

    def reduce(
        self,
        op: str,
        extents: Sequence[Index],
        axes: Sequence[int],
        dst: At,
        src: At,
        first: Expr | bool = True,
    ) -> None:
        """Reduce the loops ``axes`` into ``dst``, or onto what it holds unless ``first``."""
        with self._nest("vreduce", extents, {"op": op, "axes": list(axes), "first": first}) as i:
            start, combine, prepare = _REDUCE[op]
            dtype = str(dst.buffer.dtype)
            at = list(dst.index(*i))
            begin = tirx.all(*(i[a] == 0 for a in axes))
            fresh = begin if first is True else tirx.all(first, begin)
            old = _cast(dst.buffer[tuple(at)], "float32")
            old = tirx.Select(fresh, tirx.const(start, "float32"), old)
            T.buffer_store(dst.buffer, _cast(combine(old, prepare(self._read(src, i))), dtype), at)

    @staticmethod
    def _read(src: Source, i: Sequence[Expr]) -> Expr:
        if isinstance(src, At):
            return _cast(src.buffer[tuple(src.index(*i))], "float32")
        return tirx.const(float(src), "float32")

    @staticmethod
    def _write(dst: At, i: Sequence[Expr], value: Expr) -> None:
        T.buffer_store(dst.buffer, _cast(value, str(dst.buffer.dtype)), list(dst.index(*i)))


def _with_immediates(fields: dict[str, Any], sources: Sequence[Source]) -> dict[str, Any]:
    fields["immediates"] = [n for n, s in enumerate(sources) if not isinstance(s, At)]
    for n in fields["immediates"]:
        fields["imm"] = float(sources[n])  # type: ignore[arg-type]
    return fields


def _bits(value: float, dtype: str) -> int:
    """Bits of a value, as the DMA engine fills it in."""
    if dtype == "int8":
        return int(value) & 0xFF
    as_float32 = int(np.float32(value).view(np.uint32))
    return as_float32 >> 16 if dtype == "bfloat16" else int(np.float16(value).view(np.uint16))


def _signed(fill: int) -> int:
    """The int8 whose bits fill an image's surroundings (0 for floats)."""
    return fill - 256 if fill > 127 else fill


def _cast(value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")


def _flag(condition: Expr) -> Expr:
    return tirx.Select(condition, _f(1.0), _f(0.0))


# fmt: off
_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "copy": lambda x: x, "neg": lambda x: _f(0.0) - x, "abs": tirx.abs, "square": lambda x: x * x,
    "relu": lambda x: tirx.max(x, _f(0.0)), "reciprocal": lambda x: _f(1.0) / x,
    "floor": tirx.floor, "ceil": tirx.ceil, "round": tirx.nearbyint, "exp": tirx.exp, "log": tirx.log,
    "sqrt": tirx.sqrt, "rsqrt": tirx.rsqrt, "erf": tirx.erf, "tanh": tirx.tanh, "sigmoid": tirx.sigmoid,
    "sin": tirx.sin, "cos": tirx.cos,
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "max": tirx.max, "min": tirx.min,
    "lt": lambda a, b: _flag(a < b), "le": lambda a, b: _flag(a <= b), "gt": lambda a, b: _flag(a > b),
    "ge": lambda a, b: _flag(a >= b), "eq": lambda a, b: _flag(a == b), "ne": lambda a, b: _flag(a != b),
}
_TERNARY: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "muladd": lambda a, b, c: a * b + c, "submul": lambda a, b, c: (a - b) * c,
    "add3": lambda a, b, c: a + b + c, "select": lambda a, b, c: tirx.Select(a != _f(0.0), b, c),
}
# fmt: on
_REDUCE: dict[str, tuple[float, Callable[[Expr, Expr], Expr], Callable[[Expr], Expr]]] = {
    "sum": (0.0, lambda a, b: a + b, lambda x: x),
    "sumsq": (0.0, lambda a, b: a + b, lambda x: x * x),
    "max": (-3.4e38, tirx.max, lambda x: x),
    "min": (3.4e38, tirx.min, lambda x: x),
    "absmax": (0.0, tirx.max, tirx.abs),
}
