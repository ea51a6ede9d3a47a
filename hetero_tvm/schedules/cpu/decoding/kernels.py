"""Kernels of a decoder on a CPU, by contract; what a target hands to the builder of language models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.errors import TargetError
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import (
    Append,
    AppendSource,
    CachedAttention,
    Embed,
    LayerInputs,
    Linear,
    Multiply,
    RelativeBias,
    Rotate,
    RowNorm,
    SourceAttention,
    Unfold,
    Xielu,
)
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear, Route
from hetero_tvm.ops.decoding.states import DeltaScan, Gate, GatedNorm, Scan, ShortConvolution
from hetero_tvm.ops.decoding.storage import Weight
from hetero_tvm.ops.decoding.streams import Mix, Rescale, SparseGate
from hetero_tvm.schedules.cpu.decoding.append import emit_append, emit_append_source
from hetero_tvm.schedules.cpu.decoding.attention import emit_attention
from hetero_tvm.schedules.cpu.decoding.experts import emit_combine, emit_expert_linear
from hetero_tvm.schedules.cpu.decoding.integer_words import rounds_to_bytes
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.linear import emit_linear
from hetero_tvm.schedules.cpu.decoding.routing import emit_route
from hetero_tvm.schedules.cpu.decoding.rows import (
    emit_embed,
    emit_layer_inputs,
    emit_multiply,
    emit_norm,
    emit_xielu,
)
from hetero_tvm.schedules.cpu.decoding.source import (
    emit_relative_bias,
    emit_rotate,
    emit_source_attention,
    emit_unfold,
)
from hetero_tvm.schedules.cpu.decoding.states import (
    emit_delta_scan,
    emit_gate,
    emit_gated_norm,
    emit_scan,
    emit_short_convolution,
)
from hetero_tvm.schedules.cpu.decoding.streams import emit_mix, emit_rescale, emit_sparse_gate

Contract = (
    Linear
    | Append
    | AppendSource
    | CachedAttention
    | Embed
    | RowNorm
    | LayerInputs
    | Multiply
    | Xielu
    | SourceAttention
    | RelativeBias
    | Rotate
    | Unfold
    | Route
    | ExpertLinear
    | Combine
    | ShortConvolution
    | Scan
    | DeltaScan
    | GatedNorm
    | Gate
    | Mix
    | Rescale
    | SparseGate
)

_EMIT_PRODUCT = {Linear: emit_linear, ExpertLinear: emit_expert_linear}
_EMIT = {
    Append: emit_append,
    Embed: emit_embed,
    RowNorm: emit_norm,
    LayerInputs: emit_layer_inputs,
    Multiply: emit_multiply,
    Xielu: emit_xielu,
    AppendSource: emit_append_source,
    SourceAttention: emit_source_attention,
    RelativeBias: emit_relative_bias,
    Rotate: emit_rotate,
    Unfold: emit_unfold,
    Route: emit_route,
    Combine: emit_combine,
    ShortConvolution: emit_short_convolution,
    Scan: emit_scan,
    DeltaScan: emit_delta_scan,
    GatedNorm: emit_gated_norm,
    Gate: emit_gate,
    Mix: emit_mix,
    Rescale: emit_rescale,
    SparseGate: emit_sparse_gate,
}


@dataclass(frozen=True)
class DecoderKernels:
    """The kernels for one machine.

    Parameters
    ----------
    x_bits : see :class:`hetero_tvm.schedules.cpu.decoding.parts.Parts`.
    rounds_attention : whether queries, keys, values and weights of prompts may be bfloat16.
    """

    machine: CpuModel
    x_bits: int = 0
    rounds_attention: bool = False

    def rounding(self, rows: str) -> DecoderKernels:
        """Kernels that round rows to ``int8`` or ``int16`` beside weights of 8 bits, to ``bf16`` beside such.

        Raises
        ------
        TargetError : the machine has no instruction for them.
        """
        if rows == "bf16" and not self.machine.has_tiles("amx_bf16"):
            raise TargetError(
                f"{self.machine.mcpu} has no tiles of bfloat16 (AMX)",
                hint="rows of float32, the default, are multiplied anywhere",
            )
        if rows == "int8" and not rounds_to_bytes(self.machine):
            raise TargetError(
                f"{self.machine.mcpu} has no exact product of 8 by 8 bits (VNNI)",
                hint="rows of 16 bits, the default, are multiplied anywhere",
            )
        return replace(self, x_bits=8 if rows == "int8" else 16, rounds_attention=rows != "int16")

    def emit(self, op: Contract) -> PrimFunc:
        """The kernel of a contract; the functions that write it say what its arguments are."""
        if type(op) in _EMIT_PRODUCT:
            return _EMIT_PRODUCT[type(op)](op, self.machine, self.x_bits)
        if isinstance(op, CachedAttention):
            return emit_attention(op, self.machine, self.rounds_attention)
        return _EMIT[type(op)](op, self.machine)

    def pack(self, op: Linear, weight: Weight) -> list[np.ndarray]:
        """The arrays that stand for a weight [n, k] among the arguments of ``op``'s kernel."""
        return PanelLayout.of(op, self.machine).pack(weight)

    def pack_bias(self, op: Linear, bias: np.ndarray) -> np.ndarray:
        """The array that stands for a bias."""
        return PanelLayout.of(op, self.machine).pack_bias(bias)
