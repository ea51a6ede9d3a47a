"""Moves of quantised tensors as moves of their 8 bits, and no quantisers that undo each other.

::

    move(dequantize(x))                       ->  dequantize(move(x))
    quantize(dequantize(x, s, z), s, z)       ->  x
    quantize(concat(dequantize(x), ...))      ->  concat(quantize(dequantize(x)), ...)

Tools put quantisers around every operator, pooling and reshapes too.  Together the rewrites leave none
between kernels: the tensor stays in a quarter of the memory, and a product behind the move finds 8 bits.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax, tvm
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES

_JOINS = ("relax.concat", "relax.stack")
"""Moves of a tuple of tensors."""

_OF_TWO = ("relax.maximum", "relax.minimum")
"""Moves of a value of one of two tensors."""

_ORDER = ("relax.max", "relax.min", "relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")
"""Moves of a value chosen by its place in an order, which is that of bytes if the scale is above 0."""

_MOVES = (
    "relax.permute_dims",
    "relax.image.resize2d",
    "relax.strided_slice",
    "relax.take",
    "relax.gather_elements",
    "relax.gather_nd",
    "relax.broadcast_to",
    "relax.tile",
    "relax.repeat",
    "relax.flip",
    "relax.nn.pad",
    *_JOINS,
    *_OF_TWO,
    *_ORDER,
    *RESHAPES,
)


class SinkDequantizers(Rule):
    """Moves of dequantised tensors, and quantisers of what another one gave."""

    name = "quantized_moves"
    counted = False
    anchors = ("relax.quantize", *_MOVES)

    def match(self, graph: Graph, var: Var) -> list[Expr] | None:
        call = graph.value(var)
        if call.op.name == "relax.quantize":
            inner = graph.call(call.args[0], "relax.dequantize")
            same = inner is not None and parameters_of(graph, call) == parameters_of(graph, inner) is not None
            return [inner.args[0]] if same and dtype_of(inner.args[0]) == dtype_of(var) else None
        if call.op.name == "relax.image.resize2d" and str(call.attrs.method) != "nearest_neighbor":
            return None
        inner = [graph.call(part, "relax.dequantize") for part in _parts(graph, call)]
        if not inner or any(one is None for one in inner):
            return None
        if {dtype_of(one.args[0]) for one in inner} - set(OFFSET):
            return None
        first = parameters_of(graph, inner[0])
        same = first is not None and all(parameters_of(graph, one) == first for one in inner)
        if first is not None and not _keeps(call, *first):
            return None
        if not same or any(array_of(graph.value(one.args[0])) is not None for one in inner):
            return None  # weights are read where they stand
        return [one.args[0] for one in inner]

    def rewrite(self, graph: Graph, var: Var, found: list[Expr]) -> None:
        call = graph.value(var)
        if call.op.name == "relax.quantize":
            graph.forward(var, found[0])
            return
        outer = graph.call(_parts(graph, call)[0], "relax.dequantize")
        if call.op.name == "relax.nn.pad":
            dtype, scale, zero = parameters_of(graph, outer)
            value = _byte(float(call.attrs.pad_value), dtype, scale, zero) or 0
            moved = relax.op.nn.pad(found[0], call.attrs.pad_width, str(call.attrs.pad_mode), value)
        elif call.op.name in _OF_TWO:
            moved = tvm.ir.Call(call.op, found, call.attrs)
        else:
            first = relax.Tuple(found) if call.op.name in _JOINS else found[0]
            moved = tvm.ir.Call(call.op, [first, *call.args[1:]], call.attrs)
        moved = graph.insert_before(var, moved, f"{var.name}#bytes", [var])
        graph.replace(var, relax.op.dequantize(moved, *outer.args[1:], axis=0, out_dtype=dtype_of(var)))


class SplitBytes(Rule):
    """``split(dequantize(x))`` -> dequantised parts of a split of x."""

    name = "split_bytes"
    counted = False
    anchors = ("relax.split",)

    def match(self, graph: Graph, var: Var) -> tuple[Call, list[Var]] | None:
        call = graph.call(graph.value(var).args[0], "relax.dequantize")
        users = graph.users(var)
        if call is None or parameters_of(graph, call) is None or dtype_of(call.args[0]) not in OFFSET:
            return None
        if None in users or not all(isinstance(graph.value(user), relax.TupleGetItem) for user in users):
            return None
        return call, list(dict.fromkeys(users))

    def rewrite(self, graph: Graph, var: Var, found: tuple[Call, list[Var]]) -> None:
        inner, users = found
        call = graph.value(var)
        moved = tvm.ir.Call(call.op, [inner.args[0], *call.args[1:]], call.attrs)
        moved = graph.insert_before(var, moved, f"{var.name}#bytes", [var])
        for user in users:
            item = relax.TupleGetItem(moved, graph.value(user).index)
            part = graph.insert_before(user, item, f"{user.name}#bytes", [user])
            graph.replace(user, relax.op.dequantize(part, *inner.args[1:], axis=0, out_dtype=dtype_of(user)))


class QuantizeParts(Rule):
    """``quantize(concat(parts))`` of dequantised parts -> ``concat`` of quantised ones.

    Each part is a function of its own bytes then, and one that has the result's steps already only moves.
    """

    name = "quantize_parts"
    counted = False
    anchors = ("relax.quantize",)

    def match(self, graph: Graph, var: Var) -> list[Expr] | None:
        call = graph.value(var)
        joined = graph.call(call.args[0], "relax.concat")
        if joined is None or parameters_of(graph, call) is None or graph.only_user(call.args[0]) is None:
            return None
        parts = _parts(graph, joined)
        inner = [graph.call(part, "relax.dequantize") for part in parts]
        if not parts or any(one is None or parameters_of(graph, one) is None for one in inner):
            return None
        return parts if all(dtype_of(one.args[0]) in OFFSET for one in inner) else None

    def rewrite(self, graph: Graph, var: Var, found: list[Expr]) -> None:
        call, bind = graph.value(var), graph.binder(var, [var])
        parts = [bind(tvm.ir.Call(call.op, [part, *call.args[1:]], call.attrs), "part") for part in found]
        joined = graph.value(call.args[0])
        graph.replace(var, tvm.ir.Call(joined.op, [relax.Tuple(parts)], joined.attrs), [call.args[0]])


def _keeps(call: relax.Call, dtype: str, scale: float, zero: float) -> bool:
    """Whether a move of bytes gives the bytes of the move."""
    if call.op.name in (*_ORDER, *_OF_TWO):
        return scale > 0
    if call.op.name == "relax.nn.pad" and str(call.attrs.pad_mode) == "constant":
        return _byte(float(call.attrs.pad_value), dtype, scale, zero) is not None
    return True


def _byte(value: float, dtype: str, scale: float, zero: float) -> int | None:
    """The step that stands for exactly ``value``, if there is one."""
    step = round(value / scale + zero) if np.isfinite(value) and scale else 0
    lies = np.iinfo(dtype).min <= step <= np.iinfo(dtype).max
    return step if lies and np.float32(step - zero) * np.float32(scale) == np.float32(value) else None


def _parts(graph: Graph, call: relax.Call) -> list[Expr]:
    """Tensors that a move takes its values from."""
    if call.op.name in _OF_TWO:
        return list(call.args)
    if call.op.name not in _JOINS:
        return [call.args[0]]
    fields = graph.value(call.args[0])
    return list(fields.fields) if isinstance(fields, relax.Tuple) else []


def parameters_of(graph: Graph, call: relax.Call) -> tuple[str, float, float] | None:
    """Type, scale and zero point of a quantiser with one of each for the whole tensor."""
    quantizes = call.op.name == "relax.quantize"
    dtype = str(call.attrs.out_dtype) if quantizes else dtype_of(call.args[0])
    scale, zero = (scalar_of(graph.value(arg)) for arg in call.args[1:])
    if scale is None or zero is None or any(len(shape_of(arg)) > 0 for arg in call.args[1:]):
        return None
    return dtype, scale, zero
