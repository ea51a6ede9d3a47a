"""Losses that PyTorch's exporter translates wrongly."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MEAN, _SUM = 1, 2


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Cross entropy of smoothed classes, of which those to ignore count nowhere."""
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

    # The exporter's own translation of these gives 1 as the sum of the weights, which gradients divide by.
    weighted = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
    theirs = torch._decomp.get_decompositions(weighted)
    return {aten.cross_entropy_loss.default: cross_entropy, **theirs}
