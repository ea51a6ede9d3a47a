"""Operators on float64 of which ONNX or PyTorch's exporter stores numbers as float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node

_SELU = 1.6732632423543772, 1.0507009873554805
"""The slope and the scale of a self-normalizing unit."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Norms, activations, logarithms, and scaled sums, of float64 alone: the rest keep their operators."""
    return {operator: _of_doubles(torch, formula) for operator, formula in _formulas(torch).items()}


def in_part(torch: ModuleType) -> dict[Any, Callable[[Node], bool]]:
    """Operators of the table that PyTorch's exporter takes, except in such calls: of float64."""

    def takes_doubles(node: Node) -> bool:
        first = next((argument for argument in node.args if isinstance(argument, torch.fx.Node)), None)
        return first is not None and getattr(first.meta.get("val"), "dtype", None) == torch.float64

    return dict.fromkeys(_formulas(torch), takes_doubles)


def _of_doubles(torch: ModuleType, formula: Callable[..., Any]) -> Callable[..., Any]:
    def computed(x: Tensor, *rest: Any, **options: Any) -> Any:
        return formula(x, *rest, **options) if x.dtype == torch.float64 else NotImplemented

    return computed


def _formulas(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten

    def normalized(x: Tensor, axes: list[int], eps: float) -> Tensor:
        centered = x - x.mean(axes, keepdim=True)
        return centered / (centered.square().mean(axes, keepdim=True) + eps).sqrt()

    def layer_norm(
        x: Tensor,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        y = normalized(x, list(range(-len(shape), 0)), eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def by_channel(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        shape = [-1] + [1] * (y.dim() - 2)
        y = y if weight is None else y * weight.reshape(shape)
        return y if bias is None else y + bias.reshape(shape)

    def group_norm(
        x: Tensor,
        groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        y = normalized(x.reshape(x.shape[0], groups, -1), [-1], eps).reshape(x.shape)
        return by_channel(y, weight, bias)

    def instance_norm(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        of_input: bool,
        momentum: float,
        eps: float,
        *_: Any,
    ) -> Any:
        if not of_input:
            return NotImplemented
        return by_channel(normalized(x, list(range(2, x.dim())), eps), weight, bias)

    def batch_norm(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        *_: Any,
    ) -> Any:
        if training or mean is None or variance is None:
            return NotImplemented
        y = by_channel(by_channel(x, None, -mean), (variance + eps).rsqrt(), None)
        return by_channel(y, weight, bias)

    def of_three(x: Tensor, *rest: Any) -> Any:
        """Batch norm as its own decomposition calls it; nobody reads the other two results."""
        *given, momentum, eps = rest
        return batch_norm(x, *given, False, momentum, eps), x.new_zeros(0), x.new_zeros(0)

    def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
        return torch.where(x > 0, x * scale, (x.clamp(max=0.0) * input_scale).expm1() * (alpha * scale))

    def gelu(x: Tensor, approximate: str = "none") -> Tensor:
        if approximate == "tanh":
            return 0.5 * x * (1.0 + ((x + 0.044715 * x * x * x) * math.sqrt(2 / math.pi)).tanh())
        return 0.5 * x * (1.0 + (x * math.sqrt(0.5)).erf())

    def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
        scaled = x * beta
        return torch.where(scaled > threshold, x, scaled.clamp(max=float(threshold)).exp().log1p() / beta)

    def sinc(x: Tensor) -> Tensor:
        turned = x * math.pi
        return torch.where(x == 0, 1.0, turned.sin() / turned)

    def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        if beta == alpha == 1:
            return NotImplemented
        product = a.mm(b) * alpha
        return x * beta + product if beta else product

    def vector_norm(x: Tensor, order: float = 2, *rest: Any, **options: Any) -> Any:
        """Norm of another order than those that have operators."""
        if order in (0, 1, 2, math.inf, -math.inf) or rest[2:] or options.get("dtype") is not None:
            return NotImplemented
        axes, keep = (*rest, *(options.get(name) for name in ("dim", "keepdim")[len(rest) :]))
        powers = x.abs() ** float(order)
        total = powers.sum() if axes is None else powers.sum(axes, keepdim=bool(keep))
        return total ** (1.0 / order)

    def hardsigmoid(x: Tensor) -> Tensor:
        return (x + 3.0).clamp(0.0, 6.0) / 6.0

    return {
        aten.fill.Scalar: lambda x, value: torch.full_like(x, value),
        aten.addcmul.default: lambda x, a, b, *, value=1: x + a * b * value,
        aten.addcdiv.default: lambda x, a, b, *, value=1: x + a * value / b,
        aten.leaky_relu.default: lambda x, slope=0.01: torch.where(x > 0, x, x * slope),
        aten.elu.default: elu,
        aten.celu.default: lambda x, alpha=1.0: elu(x, alpha, 1.0, 1.0 / alpha),
        aten.selu.default: lambda x: elu(x, *_SELU),
        aten.hardtanh.default: lambda x, least=-1.0, most=1.0: x.clamp(float(least), float(most)),
        aten.softplus.default: softplus,
        aten.hardsigmoid.default: hardsigmoid,
        aten.hardswish.default: lambda x: x * hardsigmoid(x),
        aten.gelu.default: gelu,
        aten.log2.default: lambda x: x.log() / math.log(2),
        aten.log10.default: lambda x: x.log() / math.log(10),
        aten.sinc.default: sinc,
        aten.addmm.default: addmm,
        aten.linalg_vector_norm.default: vector_norm,
        aten.layer_norm.default: layer_norm,
        aten.group_norm.default: group_norm,
        aten.instance_norm.default: instance_norm,
        aten.batch_norm.default: batch_norm,
        aten._native_batch_norm_legit_no_training.default: of_three,
    }
