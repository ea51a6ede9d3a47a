"""Moves of quantised tensors as moves of their 8 bits, and no quantisers that undo each other.

::

    move(dequantize(x))                       ->  dequantize(move(x))
    quantize(dequantize(x, s, z), s, z)       ->  x

Tools put quantisers around every operator, pooling and reshapes too.  Together the two rewrites leave none
between kernels: the tensor stays in a quarter of the memory, and a product behind the move finds 8 bits.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES

_MOVES = (
    "relax.permute_dims",
    "relax.strided_slice",
    "relax.take",
    "relax.nn.max_pool2d",
    "relax.concat",
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
            same = inner is not None and _parameters(graph, call) == _parameters(graph, inner) is not None
            return [inner.args[0]] if same and dtype_of(inner.args[0]) == dtype_of(var) else None
        inner = [graph.call(part, "relax.dequantize") for part in _parts(graph, call)]
        if not inner or any(one is None for one in inner):
            return None
        if {dtype_of(one.args[0]) for one in inner} - set(OFFSET):
            return None
        first = _parameters(graph, inner[0])
        same = first is not None and all(_parameters(graph, one) == first for one in inner)
        if not same or any(array_of(graph.value(one.args[0])) is not None for one in inner):
            return None  # weights are read where they stand
        return [one.args[0] for one in inner]

    def rewrite(self, graph: Graph, var: Var, found: list[Expr]) -> None:
        call = graph.value(var)
        if call.op.name == "relax.quantize":
            graph.forward(var, found[0])
            return
        outer = graph.call(_parts(graph, call)[0], "relax.dequantize")
        first = relax.Tuple(found) if call.op.name == "relax.concat" else found[0]
        moved = tvm.ir.Call(call.op, [first, *call.args[1:]], call.attrs)
        moved = graph.insert_before(var, moved, f"{var.name}#bytes", [var])
        graph.replace(var, relax.op.dequantize(moved, *outer.args[1:], axis=0, out_dtype=dtype_of(var)))


def _parts(graph: Graph, call: relax.Call) -> list[Expr]:
    """Tensors that a move takes its values from."""
    if call.op.name != "relax.concat":
        return [call.args[0]]
    fields = graph.value(call.args[0])
    return list(fields.fields) if isinstance(fields, relax.Tuple) else []


def _parameters(graph: Graph, call: relax.Call) -> tuple[str, float, float] | None:
    """Type, scale and zero point of a quantiser with one of each for the whole tensor."""
    quantizes = call.op.name == "relax.quantize"
    dtype = str(call.attrs.out_dtype) if quantizes else dtype_of(call.args[0])
    scale, zero = (scalar_of(graph.value(arg)) for arg in call.args[1:])
    if scale is None or zero is None or any(len(shape_of(arg)) > 0 for arg in call.args[1:]):
        return None
    return dtype, scale, zero
