"""Attention whose heads are as deep as a size that is open: a fusion that ranges do without.

Attention over channels (XCiT, Restormer) multiplies channels with channels: what it sums over are the rows.
Kernels of attention hold a head in vectors, so its depth is a number; products and a softmax take any.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.host.tvm import IRModule
from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.rewriting.fused import contract_of, is_call_tir


def depths_differ(modules: Sequence[IRModule]) -> bool:
    """Whether an attention of a model has heads of other depths at another of its sizes."""
    return len({_depths(module) for module in modules}) > 1


def _depths(module: IRModule) -> tuple[tuple[int, int], ...]:
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    ops = [contract_of(module[value.args[0]]) for value in values if is_call_tir(value)]
    return tuple((op.head_dim, op.values) for op in ops if isinstance(op, Attention))
