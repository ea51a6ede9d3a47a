"""Unscheduled TensorIR of operators, written as tensor expressions.

This form is the identity of a tuning task (its structural hash), what the stock rules would
schedule, and what a target that claims nothing would compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hetero_tvm.host.activation_names import ByName
from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor, te, tirx
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import PLAIN, Layout

OP_ATTR = "hetero.op"
"""PrimFunc attribute that carries the contract of a fused operator as JSON."""


def prim_func(
    op: FusedOp, compute: Callable[..., TETensor | list[TETensor]], index_dtype: str | None = None
) -> PrimFunc:
    """PrimFunc of ``op``, marked with its contract.

    ``compute`` maps placeholders of ``op.inputs`` to the result, or to a list of the results.
    With ``index_dtype`` int64 the function has the extents that Relax's own kernels have, and may be fused
    with them.
    """
    placeholders = [te.placeholder(x.shape, x.dtype, name=x.name) for x in op.inputs]
    results = compute(*placeholders)
    results = results if isinstance(results, list) else [results]
    function = te.create_prim_func([*placeholders, *results], index_dtype)
    function = function.without_attr("global_symbol")
    # op_pattern 8 is "opaque": Relax's generic fusion leaves the function alone.
    return function.with_attr({OP_ATTR: op.to_json(), "op_pattern": 8, "tirx.noalias": True})


def broadcast_index(shape: tuple[int, ...], index: Sequence[Expr]) -> tuple[Expr | int, ...]:
    """Index into an operand of ``shape`` for ``index`` of the result that it is broadcast to."""
    last = index[len(index) - len(shape) :]
    return tuple(0 if extent == 1 else i for extent, i in zip(shape, last, strict=True))


def at_flat(tensor: TETensor, place: Expr) -> Expr:
    """Element of ``tensor`` at a flat place, row-major."""
    indices = []
    for extent in reversed(tensor.shape):
        indices.append(tirx.floormod(place, extent))
        place = tirx.floordiv(place, extent)
    return tensor[tuple(reversed(indices))]


def wide(x: Expr) -> Expr:
    """Cast of an operand's value to float32, in which all arithmetic is done."""
    return x if str(getattr(x, "dtype", None) or x.ty.dtype) == "float32" else x.astype("float32")


def activation(name: str, x: Expr) -> Expr:
    """Activation of an epilogue on a scalar expression (see ``codegen.vector_math``)."""
    from hetero_tvm.codegen import vector_math

    return vector_math.ACTIVATIONS[name](x)


def image(tensor: TETensor, layout: str, extents: tuple[int, ...]) -> TETensor:
    """Plain NCHW image of ``extents`` that ``tensor`` holds in ``layout``."""
    if layout == PLAIN:
        return tensor
    form = Layout.parse(layout)
    return te.compute(extents, lambda n, c, y, x: form.element(tensor, n, c, y, x), name="image")


def image_as(plain: TETensor, layout: str) -> TETensor:
    """Copy of a plain NCHW image in ``layout``; zero in the halo and in lanes past the channels."""
    if layout == PLAIN:
        return plain
    form = Layout.parse(layout)
    _, channels, height, width = (int(extent) for extent in plain.shape)

    def element(n: Expr, b: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        c, y, x = b * form.block + lane, i - form.halo[0], j - form.halo[1]
        inside = te.all(c < channels, y >= 0, y < height, x >= 0, x < width)
        return te.if_then_else(inside, plain[n, c, y, x], tirx.const(0.0, plain.dtype))

    return te.compute(form.shape((int(plain.shape[0]), channels, height, width)), element, name="laid_out")


def plain_activation(name: str, x: Expr) -> Expr:
    """Activation in TIR's own functions, for kernels that Relax may fuse with others, and analyse then."""

    def c(value: float) -> Expr:
        return tirx.const(value, "float32")

    forms: dict[str, Callable[[], Expr]] = {
        "relu": lambda: tirx.max(c(0.0), x),
        "relu6": lambda: tirx.min(c(6.0), tirx.max(c(0.0), x)),
        "tanh": lambda: tirx.tanh(x),
        "sigmoid": lambda: tirx.sigmoid(x),
        "silu": lambda: x * tirx.sigmoid(x),
        "quick_gelu": lambda: x * tirx.sigmoid(c(1.702) * x),
        "hard_swish": lambda: x * (tirx.min(c(6.0), tirx.max(c(0.0), x + c(3.0))) * c(1 / 6)),
        "gelu_erf": lambda: c(0.5) * x * (c(1.0) + tirx.erf(x * c(math.sqrt(0.5)))),
        "gelu_tanh": lambda: (
            c(0.5) * x * (c(1.0) + tirx.tanh(c(math.sqrt(2 / math.pi)) * (x + c(0.044715) * x * x * x)))
        ),
    }

    def leaky(slope: float) -> Callable[[], Expr]:
        return lambda: tirx.Select(x > c(0.0), x, c(slope) * x)

    return ByName(forms, leaky)[name]()
