"""Kernels of a decoder on a CPU, by contract; what a target hands to the builder of language models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import (
    Append,
    AppendSource,
    CachedAttention,
    Embed,
    Linear,
    RelativeBias,
    RowNorm,
    SourceAttention,
    Unfold,
)
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear, Route
from hetero_tvm.ops.decoding.storage import Weight
from hetero_tvm.schedules.cpu.decoding.append import emit_append, emit_append_source
from hetero_tvm.schedules.cpu.decoding.attention import emit_attention
from hetero_tvm.schedules.cpu.decoding.experts import emit_combine, emit_expert_linear
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.linear import emit_linear
from hetero_tvm.schedules.cpu.decoding.routing import emit_route
from hetero_tvm.schedules.cpu.decoding.rows import emit_embed, emit_norm
from hetero_tvm.schedules.cpu.decoding.source import (
    emit_relative_bias,
    emit_source_attention,
    emit_unfold,
)

Contract = (
    Linear
    | Append
    | AppendSource
    | CachedAttention
    | Embed
    | RowNorm
    | SourceAttention
    | RelativeBias
    | Unfold
    | Route
    | ExpertLinear
    | Combine
)

_EMIT = {
    Linear: emit_linear,
    Append: emit_append,
    CachedAttention: emit_attention,
    Embed: emit_embed,
    RowNorm: emit_norm,
    AppendSource: emit_append_source,
    SourceAttention: emit_source_attention,
    RelativeBias: emit_relative_bias,
    Unfold: emit_unfold,
    Route: emit_route,
    ExpertLinear: emit_expert_linear,
    Combine: emit_combine,
}


@dataclass(frozen=True)
class DecoderKernels:
    """The kernels for one machine."""

    machine: CpuModel

    def emit(self, op: Contract) -> PrimFunc:
        """The kernel of a contract; the functions that write it say what its arguments are."""
        return _EMIT[type(op)](op, self.machine)

    def pack(self, op: Linear, weight: Weight) -> list[np.ndarray]:
        """The arrays that stand for a weight [n, k] among the arguments of ``op``'s kernel."""
        return PanelLayout.of(op, self.machine).pack(weight)

    def pack_bias(self, op: Linear, bias: np.ndarray) -> np.ndarray:
        """The array that stands for a bias."""
        return PanelLayout.of(op, self.machine).pack_bias(bias)
