"""Activations: the call that their rules leave, and how other rules recognise it."""

from __future__ import annotations

from hetero_tvm.host.activation_names import leaky_name
from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of

_OPERATORS = {
    "relax.nn.relu": "relu",
    "relax.nn.gelu": "gelu_erf",
    "relax.nn.gelu_tanh": "gelu_tanh",
    "relax.nn.silu": "silu",
    "relax.sigmoid": "sigmoid",
    "relax.tanh": "tanh",
}


def activation_of(graph: Graph, var: Var) -> str | None:
    """Name of the activation that ``var`` computes (in ``ops.activations``); None for anything else."""
    name = _OPERATORS.get(graph.op_name(var) or "")
    if graph.op_name(var) == "relax.nn.leakyrelu":
        return leaky_name(float(graph.value(var).attrs.alpha))
    if name is None and graph.op_name(var) == "relax.call_tir":
        op = contract(graph.functions(), graph.value(var))
        name = op.function if isinstance(op, Elementwise) else None
    return name


def activation_input(graph: Graph, var: Var) -> Expr:
    """Operand of the activation ``var``."""
    args = graph.value(var).args
    return args[1].fields[0] if graph.op_name(var) == "relax.call_tir" else args[0]


def replace_by_elementwise(graph: Graph, top: Var, function: str, x: Expr, absorbed: list[Var]) -> None:
    """Bind ``top`` to the activation of x as one operator."""
    op = Elementwise(shape_of(x), function)
    graph.replace(top, graph.call_function(op.workload(), op.label, [x], top), absorbs=absorbed)
