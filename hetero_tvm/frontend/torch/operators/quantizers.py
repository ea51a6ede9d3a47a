"""Quantisers: simulated ones that gradients pass, and PT2E's dynamic ones with ranges found at run time."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MODULE = "torch.ao.quantization.fx._decomposed"
"""Module that registers PT2E's operators, of the namespace ``quantized_decomposed``."""

_OF_ONNX = ((0, 127), (0, 255), (-128, 127))
"""Ranges of integers that PyTorch's exporter translates."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Simulated quantisation with the places that its gradient passes, and PT2E's operators where they are
    registered: scale and zero point of a tensor from its least and largest value."""
    return _simulated(torch) | _of_pt2e(torch)


def _simulated(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten

    def simulated(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
        steps = torch.round(x * (1.0 / scale)) + zero
        return ((steps.clamp(low, high) - zero) * scale).to(x.dtype), (steps >= low) & (steps <= high)

    def of_tensors(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
        return simulated(x, scale.reshape(()), zero.reshape(()).to(scale.dtype), low, high)

    def by_tensors(
        x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
    ) -> tuple[Tensor, Tensor]:
        found, inside = of_tensors(x, scale, zero, low, high)
        on = enabled.reshape(()) != 0
        return torch.where(on, found, x), inside | ~on

    def by_channels(
        x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
    ) -> tuple[Tensor, Tensor]:
        shape = [-1 if place == axis % x.dim() else 1 for place in range(x.dim())]
        return simulated(x, scale.reshape(shape), zero.to(scale.dtype).reshape(shape), low, high)

    def alone(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
        """The values without their mask, in ranges that ONNX has no integers of: four bits, for one."""

        def call(x: Tensor, *settings: Any) -> Any:
            return NotImplemented if settings[-2:] in _OF_ONNX else function(x, *settings)[0]

        return call

    return {
        aten.fake_quantize_per_tensor_affine.default: alone(simulated),
        aten.fake_quantize_per_tensor_affine.tensor_qparams: alone(of_tensors),
        aten.fake_quantize_per_channel_affine.default: alone(by_channels),
        aten.fake_quantize_per_tensor_affine_cachemask.default: simulated,
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: by_tensors,
        aten.fake_quantize_per_channel_affine_cachemask.default: by_channels,
    }


def _of_pt2e(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
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
