"""Losses that PyTorch's exporter translates wrongly, and logarithms of sums of exponentials in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MEAN, _SUM = 1, 2


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Cross entropy of smoothed classes, of which those to ignore count nowhere; sums of exponentials.

    The exporter writes the latter as they are read (``log(sigmoid(x))``), infinite where an exponential is.
    """
    aten = torch.ops.aten

    def cross_entropy(
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = _MEAN,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Any:
        if not label_smoothing or target.dtype.is_floating_point:
            return NotImplemented
        axis = 0 if x.dim() == 1 else 1
        logs = x.log_softmax(axis)
        counts = target != ignore_index
        known = torch.where(counts, target, 0).unsqueeze(axis)
        classes = x.shape[axis]
        shape = [1] * x.dim()
        shape[axis] = classes
        factors = torch.ones(classes, dtype=x.dtype) if weight is None else weight
        weighted = logs * factors.reshape(shape)
        share = torch.where(counts, factors[known.squeeze(axis)], 0.0)
        exact = torch.where(counts, -weighted.gather(axis, known).squeeze(axis), 0.0)
        smooth = torch.where(counts, -weighted.sum(axis), 0.0)
        loss = (1.0 - label_smoothing) * exact + label_smoothing / classes * smooth
        if reduction == _SUM:
            return loss.sum()
        return loss.sum() / share.sum() if reduction == _MEAN else loss

    def log_sigmoid(x: Tensor) -> Tensor:
        return x.clamp(max=0) - (-x.abs()).exp().log1p()

    def log_of_sum(x: Tensor, y: Tensor, base: float = math.e) -> Any:
        """Logarithm of base**x + base**y; equal numbers, infinite ones too, have no distance to compute."""
        if x.dtype != y.dtype or not x.dtype.is_floating_point:
            return NotImplemented
        more = (-(x - y).abs() * math.log(base)).exp().log1p() / math.log(base)
        return torch.maximum(x, y) + torch.where(x == y, math.log(2.0) / math.log(base), more)

    def log_of_sum_of_powers(x: Tensor, y: Tensor) -> Any:
        return log_of_sum(x, y, 2.0)

    def running_log_of_sum(x: Tensor, dim: int) -> Any:
        """Logarithms of running sums, in log2(n) steps: each adds sums of twice as many exponentials."""
        if x.dim() == 0 or not x.dtype.is_floating_point or not isinstance(x.shape[dim], int):
            return NotImplemented
        along, step = x.movedim(dim, -1), 1
        while step < along.shape[-1]:
            before = torch.nn.functional.pad(along[..., :-step], (step, 0), value=-math.inf)
            along, step = log_of_sum(along, before), 2 * step
        return along.movedim(-1, dim)

    def entropy_of_logits(
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        pos_weight: Tensor | None = None,
        reduction: int = _MEAN,
    ) -> Tensor:
        share = 1 if pos_weight is None else (pos_weight - 1) * target + 1
        loss = (1 - target) * x - share * log_sigmoid(x)
        if weight is not None:
            loss = loss * weight
        loss = loss.to(target.dtype)
        if reduction == _SUM:
            return loss.sum()
        return loss.mean() if reduction == _MEAN else loss

    # The exporter's own translation of these gives 1 as the sum of the weights, which gradients divide by.
    weighted = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
    theirs = torch._decomp.get_decompositions(weighted)
    return {
        aten.cross_entropy_loss.default: cross_entropy,
        aten.binary_cross_entropy_with_logits.default: entropy_of_logits,
        aten.log_sigmoid.default: log_sigmoid,
        aten.logaddexp.default: log_of_sum,
        aten.logaddexp2.default: log_of_sum_of_powers,
        aten.logcumsumexp.default: running_log_of_sum,
        **theirs,
    }
