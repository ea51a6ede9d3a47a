"""Products of two computed tensors -> a fused operator, with a transposition of the second and a scale."""

from __future__ import annotations

from typing import Any

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.relax_passes.graph import Graph, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rule import Rule

_DTYPES = {"float32": "float32", "int8": "int32"}


class ClaimBatchMatmul(Rule):
    """``scale * (x @ w)`` -> ``ops.BatchMatmul``; w as it is, or a transpose of the last two axes."""

    name = "batch_matmul_kernel"
    counted = False
    anchors = ("relax.matmul",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        x, w = graph.value(var).args
        dtype, rank = dtype_of(x), len(shape_of(x))
        if _DTYPES.get(dtype) != dtype_of(var) or dtype_of(w) != dtype or rank < 2 or len(shape_of(w)) < 2:
            return None
        lead, (m, k), n = shape_of(x)[:-2], shape_of(x)[-2:], shape_of(var)[-1]
        shared = len(shape_of(w)) == 2 and bool(lead)
        if not shared and shape_of(w)[:-2] != lead:
            return None
        permuted, transposed = graph.call(w, "relax.permute_dims"), False
        if permuted is not None and _swaps_last(permuted, len(shape_of(w))):
            w, transposed = permuted.args[0], True
        scale, top = _scale(graph, var) if dtype == "float32" else (1.0, var)
        op = BatchMatmul(lead, m, n, k, transposed, shared, scale, dtype)
        return op, [x, w], top, var

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        op, operands, top, product = found
        call = graph.call_function(op.workload(), op.label, operands, top)
        graph.replace(top, call, absorbs=[] if top is product else [product])


def _swaps_last(permuted: Any, rank: int) -> bool:
    axes = permuted.attrs.axes
    order = list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _scale(graph: Graph, var: Any) -> tuple[float, Any]:
    """A scalar factor right behind the product, and the binding that multiplies."""
    user = graph.only_user(var)
    if user is None or graph.op_name(user) not in ("relax.multiply", "relax.divide"):
        return 1.0, var
    one, two = graph.value(user).args
    if shape_of(user) != shape_of(var):
        return 1.0, var
    factor = scalar_of(graph.value(two)) if one.same_as(var) else None
    if factor is None and graph.op_name(user) == "relax.multiply" and two.same_as(var):
        factor = scalar_of(graph.value(one))
    if factor is None or factor == 0:
        return 1.0, var
    return (1.0 / factor if graph.op_name(user) == "relax.divide" else float(factor)), user
