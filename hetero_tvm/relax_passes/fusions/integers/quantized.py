"""Products and convolutions of 8-bit integers -> ``ops.QuantMatmul`` and ``ops.QuantConv2d``.

Two spellings are read.  Between quantisers (ONNX's QDQ form)::

    quantize(relu(matmul(dequantize(x), dequantize(W)) + b))

where every step behind the product is optional, and bounds may stand for relu where a target takes them.

And in integers (MatMulInteger, ConvInteger), where the zero point of x may be known at run time only::

    matmul(astype(x) - zero, astype(W) - zero)

A convolution's borders then are written before it, with that zero point in them.

Scales and the other zero points are constants.  The bias is counted in steps of the accumulators, as most
quantisation tools give it; one that lies between two steps is rounded where the result is rounded to much
larger steps anyway.  Else, and where it and the sums may exceed 32 bits, it stays an addition of floats.
This runs before constants are folded: a weight that became a float is none of ours any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d, QuantMatmul
from hetero_tvm.relax_passes.fusions.integers.borders import bordered
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES, order_of

_ROUNDED = 1 / 512
"""Share of a step of the result that a bias may be off: it moves the rounding of 1 in 512 results at most."""


@dataclass
class _Found:
    x: Expr
    """The 8-bit tensor."""
    op: QuantMatmul | QuantConv2d
    weights: np.ndarray
    bias: np.ndarray
    scale: np.ndarray | None
    top: Var
    """The binding that the operator replaces."""
    zero: Expr | None = None
    """Zero point of x, where it is known at run time only."""
    absorbs: list[Var] = field(default_factory=list)
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Rows and columns of zero points that are written around x: top, left, bottom, right."""
    parts: int = 1
    """Number of int8 terms whose sum the weights are; they stand side by side, as x beside itself."""


class FuseQuantized(Rule):
    """A product or convolution of 8-bit tensors with what scales, shifts, bounds and rounds its result.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator; where it has none, the graph stays as it is.
    pairs_safe : how many pairs of weights [k, n] may meet without saturating 16 bits, where that matters.
    bounds : whether the target bounds results by other values than those of their type.
    """

    name = "quantized"
    anchors = ("relax.matmul", "relax.nn.conv2d", "relax.nn.conv3d")

    def __init__(
        self,
        claims: Claims = lambda op: True,
        pairs_safe: Callable[[np.ndarray], int] = lambda w: 0,
        bounds: bool = False,
    ):
        self._claims, self._pairs_safe, self._bounds = claims, pairs_safe, bounds

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        if dtype_of(var) == "int32":
            if call.op.name == "relax.nn.conv3d":
                return None
            return self._integers(graph, var, call)
        x, w = graph.call(call.args[0], "relax.dequantize"), _source(graph, call.args[1], "relax.dequantize")
        if x is None or w is None:
            return None
        if call.op.name == "relax.matmul":
            array = constant_of(graph, w.args[0])
            if array is None or len(shape_of(call.args[1])) > 2:
                return None  # two computed tensors, or several matrices, are the matter of another rule
        _need(call.op.name != "relax.nn.conv3d", "convolutions of volumes are computed in float32")
        return self._between_quantizers(graph, var, call, x)

    # --- the two spellings -----------------------------------------------------------------------

    def _between_quantizers(self, graph: Graph, var: Var, call: Call, x: Expr) -> _Found:
        source, x_scale, x_zero = x.args[0], scalar_value(graph, x.args[1]), scalar_value(graph, x.args[2])
        _need(x_scale is not None and x_zero is not None, "the scale of the input is no constant scalar")
        _need(dtype_of(source) in OFFSET, f"the input is {dtype_of(source)}, not of 8 bits")
        w, w_scale = _weights(graph, call.args[1])
        w, w_scale = self._columns_last(call, w, w_scale)
        w, parts = _narrow(call, w)
        step = w_scale * x_scale
        top, absorbs = var, []
        bias, found = _bias(graph, top, w.shape, call)
        whole = np.rint(bias / step)
        rounded = np.abs(bias - whole * step)
        if found is not None:
            top = found
            absorbs.append(var)
        relu = (user := graph.only_user(top)) is not None and graph.op_name(user) == "relax.nn.relu"
        if relu:
            absorbs.append(top)
            top = user
        out, y_zero, bounds = "float32", 0, ()
        user, low, high = graph.only_user(top), -math.inf, math.inf
        if self._bounds and user is not None and graph.op_name(user) != "relax.quantize":
            last, low, high, between = bounded(graph, top)
            after = graph.only_user(last)
            end = None if after is None else graph.call(after, "relax.quantize")
            if end is not None and all(scalar_value(graph, arg) is not None for arg in end.args[1:]):
                absorbs += [top, *between]
                top, user = last, after
        room = step * (1e-3 + 1e-6 * np.abs(whole))  # a whole number of steps that is kept in float32
        if user is not None and graph.op_name(user) == "relax.quantize":
            quantize = graph.value(user)
            y_scale, y_zero_point = (
                scalar_value(graph, quantize.args[1]),
                scalar_value(graph, quantize.args[2]),
            )
            if y_scale is not None and y_zero_point is not None and dtype_of(user) in OFFSET:
                step = step / y_scale
                out, y_zero = dtype_of(user), int(y_zero_point)
                bounds = whole_bounds(low, high, y_scale, y_zero, out)
                absorbs.append(top)
                top = user
                room = np.maximum(room, _ROUNDED * y_scale)
        reach = _reach(dtype_of(source), int(x_zero), w)
        _need(reach.max(initial=0) < 2**31, "the sums do not fit the accumulators")
        if (rounded > room).any() or (np.abs(whole) + reach >= 2**31).any():
            top, absorbs, relu, out, y_zero, bounds = var, [], False, "float32", 0, ()
            step, whole = w_scale * x_scale, np.zeros_like(whole)
        offset = int(x_zero) - OFFSET[dtype_of(source)]
        more = {"bounds": bounds} if bounds else {}
        op = self._operator(
            graph, call, source, w, parts, out=out, y_zero=y_zero, relu=relu, fill=offset, **more
        )
        totals = (whole - offset * _column_sums(w)).astype(np.int64).astype(np.int32)
        scale = np.asarray(step, np.float32)
        return _Found(source, op, w, totals, scale, top, absorbs=absorbs, parts=parts)

    def _integers(self, graph: Graph, var: Var, call: Call) -> _Found | None:
        source, zero = _shifted(graph, call.args[0])
        if source is None or array_of(graph.value(source)) is not None or dtype_of(source) not in OFFSET:
            return None
        w = constant_of(graph, call.args[1])
        if w is None:
            return None
        w, parts = _narrow(call, w.astype(np.int64))
        offset = -OFFSET[dtype_of(source)]
        if isinstance(zero, np.ndarray):
            _need(zero.size == 1, "the zero point of the input differs by row")
            offset += int(zero.reshape(()))
            zero = None
        border = (0, 0, 0, 0) if zero is None else _paddings(call)
        op = self._operator(
            graph, call, source, w, parts, border=border, out="int32", y_zero=0, relu=False, fill=offset
        )
        totals = (-offset * _column_sums(w)).astype(np.int32)
        return _Found(source, op, w, totals, None, var, zero, border=border, parts=parts)

    def _operator(
        self,
        graph: Graph,
        call: Call,
        x: Expr,
        w: np.ndarray,
        parts: int,
        fill: int,
        border: tuple[int, int, int, int] = (0, 0, 0, 0),
        **more: Any,
    ) -> QuantMatmul | QuantConv2d:
        """The operator of ``call``; a ``border`` is part of x when it runs."""
        _need(dtype_of(x) in OFFSET, f"the input is {dtype_of(x)}, not of 8 bits")
        shape = shape_of(x)
        if call.op.name == "relax.matmul":
            _need(len(shape) >= 1 and w.ndim == 2, "the weights are no matrix")
            op = QuantMatmul(
                x_dtype=dtype_of(x),
                lead=shape[:-1],
                n=w.shape[1],
                k=w.shape[0],
                pairs_safe=self._pairs_safe(w),
                **more,
            )
            _need(self._claims(op), "the target has no kernel for it")
            return op
        attrs, (top, left, bottom, right) = call.attrs, border
        _need(str(attrs.data_layout) == "NCHW" and str(attrs.kernel_layout) == "OIHW", "not NCHW")
        _need(-128 <= fill <= 127, "the zero point is not of the input's type")
        op = QuantConv2d(
            x_dtype=dtype_of(x),
            batch=shape[0],
            channels=parts * shape[1],
            height=top + shape[2] + bottom,
            width=left + shape[3] + right,
            filters=w.shape[0],
            kernel=tuple(w.shape[2:]),
            strides=tuple(int(s) for s in attrs.strides),
            padding=(0, 0, 0, 0) if any(border) else _paddings(call),
            dilation=tuple(int(d) for d in attrs.dilation),
            fill=fill,
            groups=int(attrs.groups),
            pairs_safe=self._pairs_safe(QuantConv2d.word_order(w)),
            **more,
        )
        _need(self._claims(op), "the target has no kernel for it")
        return op

    @staticmethod
    def _columns_last(call: Call, w: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights, and their scales as one vector over the columns of the result."""
        columns = w.shape[0] if call.op.name == "relax.nn.conv2d" else w.shape[-1]
        return w, np.broadcast_to(scale.reshape(-1), (columns,)).astype(np.float64)

    # --- the rewrite -------------------------------------------------------------------------------

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, top = found.op, found.top
        x = found.x
        if found.zero is not None and any(found.border):
            x = bordered(graph, x, found.zero, found.border, top)
        if found.parts > 1:
            axis = -1 if isinstance(op, QuantMatmul) else 1
            x = graph.insert_before(
                top, relax.op.concat([x] * found.parts, axis), f"{top.name}#beside", [top]
            )
        args = [x, constant(found.weights), relax.const(found.bias)]
        if found.scale is not None:
            args.append(relax.const(np.broadcast_to(found.scale, (op.columns,)).copy()))
        if found.zero is None:
            graph.replace(top, graph.call_function(op.workload(), op.label, args, top), found.absorbs)
            return
        call = relax.call_tir(graph.add_function(op.workload(), op.label), args, out_ty=top.ty)
        product = graph.insert_before(top, call, f"{top.name}#product", [top])
        rank = (1,) if isinstance(op, QuantMatmul) else (1, 1, 1, 1)
        sums = _column_sums(found.weights).astype(np.int32).reshape(-1, *rank[2:])
        zero = graph.insert_before(top, relax.op.reshape(found.zero, rank), f"{top.name}#zero", [top])
        moved = relax.op.multiply(zero, relax.const(sums))
        moved = graph.insert_before(top, moved, f"{top.name}#moved", [top])
        graph.replace(top, relax.op.subtract(product, moved))


def bounded(graph: Graph, var: Var) -> tuple[Var, float, float, list[Var]]:
    """The last of the bounds behind ``var``, the least and largest value that they leave, and the bindings
    from ``var`` on before it."""
    low, high, passed = -math.inf, math.inf, []
    while (user := graph.only_user(var)) is not None:
        name, call = graph.op_name(user), graph.value(user)
        if name == "relax.nn.relu":
            low, high = max(low, 0.0), max(high, 0.0)
        elif name in ("relax.maximum", "relax.minimum"):
            ends = [scalar_value(graph, arg) for arg in call.args]
            end = next((value for value in ends if value is not None), None)
            if end is None or shape_of(user) != shape_of(var):
                break
            pick = max if name == "relax.maximum" else min
            low, high = pick(low, end), pick(high, end)
        else:
            break
        passed.append(var)
        var = user
    return var, low, high, passed


def whole_bounds(low: float, high: float, scale: float, zero: float, dtype: str) -> tuple[int, ...]:
    """Bounds of a float as those of its 8 bits; empty where they are no narrower than the type."""
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        steps = [np.rint(np.float32(end) / np.float32(scale)) + zero for end in (low, high)]
    bounds = [int(np.clip(step, limits.min, limits.max)) for step in steps]
    return () if bounds == [limits.min, limits.max] else tuple(bounds)


# --- reading constants ---------------------------------------------------------------------------


def _need(holds: bool, reason: str) -> None:
    if not holds:
        raise Miss(reason)


def _column_sums(w: np.ndarray) -> np.ndarray:
    axes = 0 if w.ndim == 2 else tuple(range(1, w.ndim))
    return w.astype(np.int64).sum(axes)


def _reach(dtype: str, zero: int, w: np.ndarray) -> np.ndarray:
    """Largest size that the sum of each column may have, of any bytes."""
    limits = np.iinfo(dtype)
    return max(zero - limits.min, limits.max - zero) * _column_sums(np.abs(w.astype(np.int64)))


def _paddings(call: Call) -> tuple[int, int, int, int]:
    if call.op.name != "relax.nn.conv2d":
        return (0, 0, 0, 0)
    values = [int(p) for p in call.attrs.padding]
    return tuple(values * (4 // len(values)))  # type: ignore[return-value]


def _narrow(call: Call, w: np.ndarray) -> tuple[np.ndarray, int]:
    """Weights as int8 terms side by side, whose sum they are, and the number of terms.

    One term, unless the zero point makes them longer than 8 bits.
    """
    terms: list[np.ndarray] = []
    while not terms or w.any():
        _need(len(terms) < 3, "the weights less their zero point take more than 9 bits")
        terms.append(np.clip(w, -128, 127).astype(np.int8))
        w = w - terms[-1]
    conv = call.op.name == "relax.nn.conv2d"
    _need(len(terms) == 1 or not conv or int(call.attrs.groups) == 1, "weights of 9 bits in groups")
    return np.ascontiguousarray(np.concatenate(terms, 1 if conv else -2)), len(terms)


_ARITHMETIC = {"relax.subtract": np.subtract, "relax.multiply": np.multiply}
_VIEWS = ("relax.permute_dims", *RESHAPES)


def _source(graph: Graph, expr: Expr, name: str) -> Call | None:
    """The call of ``name`` behind views."""
    while (view := graph.call(expr, *_VIEWS)) is not None:
        expr = view.args[0]
    return graph.call(expr, name)


def scalar_value(graph: Graph, expr: Expr) -> float | None:
    """The value of a constant with one element; None for anything else."""
    array = constant_of(graph, expr)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def constant_of(graph: Graph, expr: Expr) -> np.ndarray | None:
    """The array of a constant behind views, casts, arithmetic and dequantisers; None for anything else."""
    value = graph.value(expr)
    if (array := array_of(value)) is not None:
        return array
    call = graph.call(expr, *_VIEWS, "relax.astype", *_ARITHMETIC, "relax.dequantize")
    if call is None:
        return None
    first = constant_of(graph, call.args[0])
    if first is None:
        return None
    name = call.op.name
    if name == "relax.astype":
        return first.astype(str(call.attrs.dtype))
    if name in _ARITHMETIC:
        second = constant_of(graph, call.args[1])
        return None if second is None else _ARITHMETIC[name](first, second)
    if name == "relax.dequantize":
        numbers = _dequantizer(graph, call)
        if numbers is None:
            return None
        scale, zero, axis = numbers
        return (first.astype(np.int64) - _along(zero, first.ndim, axis)) * _along(scale, first.ndim, axis)
    if name == "relax.permute_dims":
        return first.transpose(order_of(call))
    return first.reshape(shape_of(expr)) if is_tensor(expr) else None


def _dequantizer(graph: Graph, call: Call) -> tuple[np.ndarray, np.ndarray, int] | None:
    scale, zero = constant_of(graph, call.args[1]), constant_of(graph, call.args[2])
    if scale is None or zero is None:
        return None
    return scale.astype(np.float64), zero.astype(np.int64), int(call.attrs.axis)


def _along(vector: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Scale or zero point in the shape that broadcasts to the tensor."""
    if vector.size == 1:
        return vector.reshape(())
    shape = [1] * rank
    shape[axis % rank] = vector.size
    return vector.reshape(shape)


def _weights(graph: Graph, expr: Expr) -> tuple[np.ndarray, np.ndarray]:
    """Weights less their zero point, and the scale (of each column, or one)."""
    views = []
    while (view := graph.call(expr, *_VIEWS)) is not None:
        views.append((expr, view))
        expr = view.args[0]
    call = graph.call(expr, "relax.dequantize")
    stored, numbers = constant_of(graph, call.args[0]), _dequantizer(graph, call)
    _need(stored is not None and numbers is not None, "the weights or their scales are not constant")
    scale, zero, axis = numbers
    w = stored.astype(np.int64) - _along(zero, stored.ndim, axis)
    wide = np.broadcast_to(_along(scale, stored.ndim, axis), w.shape)
    for place, view in reversed(views):
        if view.op.name == "relax.permute_dims":
            w, wide = w.transpose(order_of(view)), wide.transpose(order_of(view))
        else:
            w, wide = w.reshape(shape_of(place)), wide.reshape(shape_of(place))
    _need(w.ndim >= 2, "the weights are no matrix")
    if scale.size == 1:
        return w, scale.reshape(1)
    # One scale for each column of a matrix, or each filter of a convolution.
    columns = wide[0] if w.ndim == 2 else wide[:, 0, 0, 0] if w.ndim == 4 else None
    _need(columns is not None, "the weights are no matrix")
    by_column = columns[None, :] if w.ndim == 2 else columns[:, None, None, None]
    _need(bool((wide == by_column).all()), "the scales of the weights differ along the reduction")
    return w, np.array(columns)


def _bias(graph: Graph, var: Var, shape: tuple[int, ...], call: Call) -> tuple[np.ndarray, Var | None]:
    """A constant vector that is added, and the binding that adds it."""
    conv = call.op.name == "relax.nn.conv2d"
    columns = shape[0] if conv else shape[-1]
    user = graph.only_user(var)
    if user is not None and graph.op_name(user) == "relax.add":
        for arg in graph.value(user).args:
            value = constant_of(graph, arg)
            if value is None or value.size not in (1, columns):
                continue
            last = value.shape[-3:] if conv else value.shape[-1:]
            if value.size == 1 or last == ((columns, 1, 1) if conv else (columns,)):
                return np.broadcast_to(value.reshape(-1), (columns,)).astype(np.float64), user
    return np.zeros(columns), None


def _shifted(graph: Graph, expr: Expr) -> tuple[Expr | None, np.ndarray | Expr]:
    """(8-bit tensor, zero point): the zero point is an array, or the expression of one scalar."""
    zero: np.ndarray | Expr = np.zeros((), np.int64)
    if (call := graph.call(expr, "relax.subtract")) is not None:
        constant = constant_of(graph, call.args[1])
        if constant is None:
            if not is_tensor(call.args[1]) or int(np.prod(shape_of(call.args[1]))) != 1:
                raise Miss("the zero point of the input differs by row")
            zero = call.args[1]
        else:
            zero = constant
        expr = call.args[0]
    call = graph.call(expr, "relax.astype")
    return (call.args[0], zero) if call is not None else (None, zero)
