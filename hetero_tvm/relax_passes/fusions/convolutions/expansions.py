"""Inverted residuals: a 1x1 convolution and the depthwise one behind it become one operator."""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from hetero_tvm.ops.matmul import BIAS, tensors_of
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


class FuseExpansions(Rule):
    """``depthwise(conv1x1(x))`` -> one operator, which keeps the image between in caches.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    pays : whether that takes less time than the two (both, the 1x1 convolution, the depthwise one).
    """

    name = "expand_depthwise"
    anchors = ("relax.call_tir",)

    def __init__(self, claims: Claims, pays: Callable[[ExpandDepthwise, Conv2d, Conv2d], bool]):
        self._claims, self._pays = claims, pays

    def match(self, graph: Graph, var: Var) -> tuple[ExpandDepthwise, list[Expr], Var] | None:
        module = graph.functions()
        depthwise = contract(module, graph.value(var))
        if type(depthwise) is not Conv2d or not depthwise.depthwise or depthwise.groups == 1:
            return None
        between, *behind = graph.value(var).args[1].fields
        expand = contract(module, graph.value(between)) if isinstance(between, Var) else None
        if type(expand) is not Conv2d or expand.kernel != (1, 1) or not expand.constant_weight:
            return None
        if expand.groups > 1 or expand.strides != (1, 1) or any(expand.padding):
            return None
        if graph.only_user(between) is not var:
            raise Miss("the image between the two has other readers")
        if tensors_of((*expand.epilogue, *depthwise.epilogue)) or BIAS in expand.epilogue[1:]:
            raise Miss("more than a bias and activations follows one of the two")
        if depthwise.dilation != (1, 1) or not depthwise.constant_weight:
            raise Miss("the depthwise convolution is dilated, or its weights are computed")
        op = ExpandDepthwise.of(expand, depthwise)
        if expand.dtype != op.dtype or not self._claims(op):
            raise Miss(f"no kernel takes {op.label}")
        if not self._pays(op, expand, depthwise):
            raise Miss("the two take less time one after the other")
        return op, [*graph.value(between).args[1].fields, *behind], between

    def rewrite(self, graph: Graph, var: Var, found: tuple[ExpandDepthwise, list[Expr], Var]) -> None:
        op, operands, between = found
        graph.replace(var, graph.call_function(op.workload(), op.label, operands, var), [between])
