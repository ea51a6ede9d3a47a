"""Products whose weights a model brings packed -> ``ops.StoredMatmul``, with the very integers of the file.

Arithmetic stays float32, unless the file allows to round what weights are multiplied with; what is won is
memory, and with few rows the time to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Var
from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import QuantizedWeight
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.relax_passes.fusions.integers.dynamic_quantization import float_product
from hetero_tvm.relax_passes.fusions.integers.stored_weights import LEAST_WEIGHTS, stored_form
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


@dataclass
class _Found:
    op: StoredMatmul
    call: Call
    weight: QuantizedWeight


class KeepPackedWeights(Rule):
    """Weights as the file packs them, wherever the target has a kernel.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    packed : columns that the file packs.
    x_bits : form of the weights -> bits that X may be rounded to; 0 for none.
    """

    name = "packed_weights"
    anchors = ("relax.call_tir",)

    def __init__(self, claims: Claims, packed: PackedColumns, x_bits: Callable[[str], int]):
        self._claims, self._packed, self._x_bits = claims, packed, x_bits

    def match(self, graph: Graph, var: Var) -> _Found | None:
        if (product := float_product(graph, var, frozenset())) is None:
            return None
        call, found, weights = product
        if weights.size < LEAST_WEIGHTS:
            raise Miss(f"{found.k} x {found.n} weights are too few to count in memory")
        if (weight := self._packed.find(weights)) is None:
            raise Miss("its weights are not those that the file packs")
        op = stored_form(found, weight.storage, self._x_bits(weight.storage.name))
        if not self._claims(op):
            raise Miss("the target has no kernel for it")
        return _Found(op, call, weight)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, _, *extra = found.call.args[1].fields
        parts = (found.weight.q, found.weight.scale, found.weight.zero)
        weights = [constant(array) for array in parts if array is not None]
        args = [x, *weights, *extra]
        graph.replace(var, graph.call_function(found.op.workload(), found.op.label, args, var), [var])
