"""Projections that one attention uses, merged into one product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.ops.attention import Attention  # noqa: E402
from hetero_tvm.relax_passes.fused import contract  # noqa: E402
from hetero_tvm.relax_passes.graph import Graph, array_of, shape_of  # noqa: E402
from hetero_tvm.relax_passes.rule import Miss, Rule  # noqa: E402


class MergeQkv(Rule):
    """Three projections of the same input, used only by one attention -> one product with 3 x the columns."""

    name = "qkv"
    anchors = ("relax.call_tir",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        op = contract(graph.functions(), graph.value(var))
        if not isinstance(op, Attention) or op.packed or op.q_len != op.kv_len:
            return None
        operands = list(graph.value(var).args[1].fields)
        projections = [_projection(graph, base) for base in operands[:3]]
        missing = [name for name, p in zip("QKV", projections, strict=True) if p is None]
        if missing:
            raise Miss(f"{', '.join(missing)} is not a product with a constant weight (plus a constant bias)")
        if not all(p.x.same_as(projections[0].x) for p in projections):
            raise Miss("Q, K and V are projections of different inputs")
        if len({p.bias is None for p in projections}) != 1:
            raise Miss("some of Q, K and V have a bias and some have none")
        for base in operands[:3]:
            if graph.only_user(base) is None:
                raise Miss(f"{graph.node(base)} is used outside the attention as well")
        return op, operands, projections

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        op, operands, projections = found
        weight = relax.const(np.concatenate([p.weight for p in projections], axis=1))
        absorbed = [v for p in projections for v in p.absorbed]
        merged = graph.insert_before(
            var, relax.op.matmul(projections[0].x, weight), var.name + "#qkv", absorbed
        )
        if projections[0].bias is not None:
            bias = relax.const(np.concatenate([p.bias for p in projections]))
            merged = graph.insert_before(var, relax.op.add(merged, bias), var.name + "#qkv_bias", absorbed)
        packed = replace(op, packed=True)
        call = graph.call_function(packed.workload(), packed.label, [merged, *operands[3:]], var)
        graph.replace(var, call)


@dataclass
class _Projection:
    x: Any
    weight: np.ndarray
    bias: np.ndarray | None
    absorbed: list[Any]


def _projection(graph: Graph, base: Any) -> _Projection | None:
    """``x @ W`` or ``x @ W + b`` with constants."""
    bias, absorbed, product = None, [base], base
    addition = graph.call(base, "relax.add")
    if addition is not None:
        for arg, other in (addition.args, reversed(list(addition.args))):
            array = array_of(graph.value(arg))
            if array is not None and array.size == shape_of(base)[-1]:
                bias, product = array.reshape(-1), other
        if bias is None or graph.only_user(product) is None:
            return None
        absorbed.append(product)
    matmul = graph.call(product, "relax.matmul")
    if matmul is None:
        return None
    weight = array_of(graph.value(matmul.args[1]))
    if weight is None or weight.ndim != 2:
        return None
    return _Projection(matmul.args[0], weight, bias, absorbed)
