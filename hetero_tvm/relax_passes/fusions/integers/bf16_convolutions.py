"""Convolutions with constant weights -> ``ops.Bf16Conv2d``: weights in bfloat16, images rounded to it.

The rule is part of ``--precision bf16``.  It comes after images have their layouts, which decide what a
convolution takes in float32: 3x3 filters by Winograd's method need fewer products than bfloat16 has faster
ones, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Var
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import HALVES, Bf16Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule
from hetero_tvm.runtime.arrays import numpy_dtype

_LARGEST = 3.38e38


@dataclass
class _Found:
    op: Bf16Conv2d
    call: Call
    weights: np.ndarray


class RoundConvolutions(Rule):
    """Convolutions in bfloat16, wherever the target has a kernel and it is the faster one.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    pays : whether it is faster than that of a float32 convolution.
    kept : source nodes whose convolutions stay in float32.
    """

    name = "bf16_convolutions"
    anchors = ("relax.call_tir",)

    def __init__(self, claims: Claims, pays: Callable[[Conv2d], bool], kept: frozenset[str] = frozenset()):
        self._claims, self._pays, self._kept = claims, pays, kept

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        op = contract(graph.functions(), call)
        if type(op) not in (Conv2d, Conv3d) or op.dtype != "float32":
            return None
        if chosen := self._kept.intersection(graph.sources(var)):
            raise Miss(f"{min(chosen)} is kept in float32")
        weights = array_of(graph.value(call.args[1].fields[1]))
        if weights is None:
            raise Miss("the weights are not constant")
        if not np.isfinite(weights).all() or np.abs(weights).max(initial=0) > _LARGEST:
            raise Miss("a weight is not finite in bfloat16")
        half = Bf16Conv2d.of(op)
        if not self._claims(half):
            raise Miss("the target has no kernel of bfloat16 for it")
        if not self._pays(op):
            raise Miss("its float32 kernel is as fast")
        return _Found(half, call, weights)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, _, *extra = found.call.args[1].fields
        rounded = constant(found.weights.astype(numpy_dtype(HALVES)))
        args = [x, rounded, *extra]
        graph.replace(var, graph.call_function(found.op.workload(), found.op.label, args, var), [var])
