"""A product with a constant weight and what follows it -> one fused operator.

From the product the rule follows the only user as long as it is a bias (constant vector), an
activation, the addition of another tensor of the same shape (residual), or a product with one (gate:
``x * (W h + b)`` of cross networks and gated blocks).  What it meets after that starts a kernel of its own.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.matmul import BIAS, GATE, Matmul
from hetero_tvm.relax_passes.fusions.elementwise import activation_of
from hetero_tvm.relax_passes.fusions.epilogue import Found, joining_tensor, other_operand
from hetero_tvm.relax_passes.fusions.linear import constant_matrix
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_RESHAPE = "reshape"
"""A reshape that keeps rows whole (exporters flatten [B, S, N] around Gemm) does not end the epilogue."""


class FuseMatmul(Rule):
    """``epilogue(x @ W)`` with W constant, as one ``ops.Matmul``."""

    name = "matmul_epilogue"
    anchors = ("relax.matmul",)

    def __init__(self, claims: Claims = lambda op: False):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> Found | None:
        x, w = graph.value(var).args
        weight = constant_matrix(graph, w)
        if weight is None:
            return None
        if dtype_of(var) != "float32" or weight.dtype != np.float32:
            raise Miss(f"dtypes are {dtype_of(x)} and {weight.dtype}, expected float32")
        if len(shape_of(x)) < 2:
            raise Miss("the left operand is a vector")
        n = weight.shape[1]
        operands, steps, absorbed, top = [x, constant(weight)], [], [], var
        gates = self._claims(Matmul(shape_of(var)[:-1], n, weight.shape[0], (GATE,)))
        while (user := graph.only_user(top)) is not None:
            step, operand = _step(graph, user, top, n, gates)
            if step is None:
                break
            if step != _RESHAPE:
                steps.append(step)
            if operand is not None:
                operands.append(operand)
            absorbed.append(top)
            top = user
        op = Matmul(shape_of(top)[:-1], n, weight.shape[0], tuple(steps))
        return Found(op, operands, top, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: Found) -> None:
        for index, operand in enumerate(found.op.inputs):
            found.operands[index] = _reshaped(graph, found.operands[index], operand.shape, found.top)
        found.replace(graph)


def _reshaped(graph: Graph, expr: Expr, shape: tuple[int, ...], anchor: Var) -> Expr:
    """``expr`` under another shape, without a reshape of a reshape."""
    if shape_of(expr) == shape:
        return expr
    inner = graph.call(expr, "relax.reshape")
    if inner is not None and shape_of(inner.args[0]) == shape:
        return inner.args[0]
    return graph.insert_before(anchor, relax.op.reshape(expr, shape), anchor.name + "#rows", [])


def _step(graph: Graph, user: Var, top: Var, n: int, gates: bool) -> tuple[str | None, Expr | None]:
    """The epilogue step that ``user`` is, and its operand."""
    name = graph.op_name(user)
    if name == "relax.reshape":
        return (_RESHAPE, None) if len(shape_of(user)) > 1 and shape_of(user)[-1] == n else (None, None)
    if (activation := activation_of(graph, user)) is not None:
        return activation, None
    if name == "relax.add" and shape_of(user) == shape_of(top):
        array = array_of(graph.value(other_operand(graph, user, top)))
        if array is not None and array.size == n and array.shape[-1:] in ((), (n,)):
            return BIAS, relax.const(array.reshape(n).astype("float32"))
    return joining_tensor(graph, user, top, gates)
