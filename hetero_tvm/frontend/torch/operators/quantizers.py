"""Ranges of tensors found at run time, as PT2E's dynamic quantisers have them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MODULE = "torch.ao.quantization.fx._decomposed"
"""Module that registers PT2E's operators, of the namespace ``quantized_decomposed``."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Scale and zero point of a tensor from its least and largest value; empty while PT2E's operators are not
    registered."""
    operators = torch.ops.quantized_decomposed
    if not hasattr(operators, "choose_qparams"):
        return {}

    def chosen(x: Tensor, low: int, high: int, eps: float, dtype: Any) -> tuple[Tensor, Tensor]:
        values = x.reshape(-1)
        least, most = values.amin(0).clamp(max=0.0), values.amax(0).clamp(min=0.0)
        scale = ((most - least) / float(high - low)).clamp(min=eps)
        zero = (low - torch.round(least / scale)).clamp(low, high)
        return scale.reshape(1).to(torch.float64), zero.reshape(1).to(torch.int64)

    def rounded(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, dtype: Any) -> Tensor:
        steps = torch.round(x * (1.0 / scale.to(torch.float32))) + zero.to(torch.float32)
        return steps.clamp(low, high).to(dtype)

    def restored(
        x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, dtype: Any, *, out_dtype: Any = None
    ) -> Tensor:
        value = (x.to(torch.float32) - zero.to(torch.float32)) * scale.to(torch.float32)
        return value if out_dtype is None else value.to(out_dtype)

    return {
        operators.choose_qparams.tensor: chosen,
        operators.quantize_per_tensor.tensor: rounded,
        operators.dequantize_per_tensor.tensor: restored,
    }
