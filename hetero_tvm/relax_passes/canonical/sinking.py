"""Transposes and reshapes move behind an elementwise step when another one waits there."""

from __future__ import annotations

from typing import NamedTuple

from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.relax_passes.canonical.views import composed
from hetero_tvm.relax_passes.rewriting.graph import Graph, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES, order_of

# fmt: off
_UNARY = frozenset(
    f"relax.{name}"
    for name in (
        "abs", "astype", "ceil", "erf", "exp", "floor", "log", "negative", "nn.gelu", "nn.gelu_tanh",
        "nn.relu", "nn.silu", "round", "rsqrt", "sigmoid", "sqrt", "square", "tanh",
    )
)
# fmt: on
_BINARY = frozenset(
    f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
)


class _Found(NamedTuple):
    step: Var
    """The elementwise step."""
    operand: Var
    """Operand that was moved."""
    base: Expr
    """The tensor before the first move."""
    order: list[int] | None
    """Axes of both transposes as one; None for reshapes."""


class SinkMoves(Rule):
    """``move(step(move(x)))`` -> ``move(step(x))``, or ``step(x)`` when the two moves undo each other.

    The step is elementwise with one operand, or with a scalar constant as the other.  Two transposes
    always become one; two reshapes only when the second brings back the shape before the first, for
    fusions read batch, rows and heads off the shapes in between.
    """

    name = "sink_moves"
    counted = False
    anchors = ("relax.permute_dims", *RESHAPES)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        step_var = graph.value(var).args[0]
        operand = _moved_operand(graph, step_var)
        if operand is None or graph.only_user(step_var) is None:
            return None
        if graph.op_name(var) == "relax.permute_dims":
            first = graph.call(operand, "relax.permute_dims")
            if first is None:
                return None
            order = composed(order_of(first), order_of(graph.value(var)))
        else:
            first = graph.call(operand, *RESHAPES)
            shape = shape_of(var)
            if first is None or shape_of(first.args[0]) != shape:
                return None
            # A scalar of more axes than that (float[1] beside float[]) would widen the result.
            others = [argument for argument in graph.value(step_var).args if not argument.same_as(operand)]
            if any(len(shape_of(argument)) > len(shape) for argument in others):
                return None
            order = None
        return _Found(step_var, operand, first.args[0], order)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        step_var, operand, base, order = found
        step = graph.value(step_var)
        arguments = [base if argument.same_as(operand) else argument for argument in step.args]
        value = tvm.ir.Call(step.op, arguments, step.attrs)
        if order is None or order == sorted(order):
            graph.replace(var, value, absorbs=[operand, step_var])
            return
        moved = graph.insert_before(var, value, f"{step_var.name}#moved", [step_var])
        graph.replace(var, relax.op.permute_dims(moved, order), absorbs=[operand])


def _moved_operand(graph: Graph, step_var: Var) -> Expr | None:
    """The one tensor operand of an elementwise step; None for any other step."""
    name, step = graph.op_name(step_var), graph.value(step_var)
    if name in _UNARY:
        return step.args[0]
    if name in _BINARY:
        tensors = [argument for argument in step.args if scalar_of(graph.value(argument)) is None]
        if len(tensors) == 1 and shape_of(tensors[0]) == shape_of(step_var):
            return tensors[0]
    return None
