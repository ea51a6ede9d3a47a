"""Attention as AOTAutograd sees it on a CPU: with the logarithms of its sums, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Both directions; tensors are [batch, heads, rows, head size]."""
    aten = torch.ops.aten

    def scores_of(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
        factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = (q @ k.transpose(-1, -2)) * factor
        if causal:
            keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~keep, float("-inf"))
        if mask is not None:
            scores = scores + mask if mask.dtype != torch.bool else scores.masked_fill(~mask, float("-inf"))
        return scores

    def alike(q: Tensor, other: Tensor) -> Tensor:
        """Heads that several query heads share, repeated."""
        return (
            other.repeat_interleave(q.shape[1] // other.shape[1], 1)
            if other.shape[1] != q.shape[1]
            else other
        )

    def shared(grad: Tensor, heads: int) -> Tensor:
        """Gradient of heads that several query heads share: the sum of theirs."""
        if grad.shape[1] == heads:
            return grad
        return grad.unflatten(1, (heads, grad.shape[1] // heads)).sum(2)

    def exact(x: Tensor) -> Tensor:
        """PyTorch's kernels compute half precision in float32, and their sums of exponentials stay so."""
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        if dropout_p:
            return NotImplemented
        kind = query.dtype
        query, key, value = map(exact, (query, key, value))
        scores = scores_of(query, alike(query, key), is_causal, attn_mask, scale)
        best = scores.amax(-1, keepdim=True)
        best = torch.where(best == float("-inf"), 0.0, best)  # rows that see nothing give zero
        weights = torch.exp(scores - best)
        total = weights.sum(-1, keepdim=True)
        divisor = torch.where(total == 0, 1.0, total)
        # Its results lie in memory as [batch, rows, heads, head size].
        result = ((weights / divisor) @ alike(query, value)).transpose(1, 2).contiguous().transpose(1, 2)
        return result.to(kind), (best + torch.log(total)).squeeze(-1)

    def backward(
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        if dropout_p:
            return NotImplemented
        kind = query.dtype
        grad_out, query, key, value, out = map(exact, (grad_out, query, key, value, out))
        groups = key.shape[1]
        key, value = alike(query, key), alike(query, value)
        factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        sums = logsumexp.unsqueeze(-1)
        sums = torch.where(sums == float("-inf"), 0.0, sums)
        weights = torch.exp(scores_of(query, key, is_causal, attn_mask, scale) - sums)
        grad_value = weights.transpose(-1, -2) @ grad_out
        grad_weights = grad_out @ value.transpose(-1, -2)
        along = (grad_out * out).sum(-1, keepdim=True)
        grad_scores = weights * (grad_weights - along) * factor
        grads = (
            grad_scores @ key,
            shared(grad_scores.transpose(-1, -2) @ query, groups),
            shared(grad_value, groups),
        )
        return tuple(grad.to(kind) for grad in grads)

    def grouped(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Attention whose keys and values serve several query heads: repeated for each of them.  Operands of
        more than four axes (heads of windows) have these as heads: PyTorch's exporter takes four."""
        if dropout_p:
            return NotImplemented
        if not enable_gqa and query.dim() > 4 and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
            if attn_mask is not None and attn_mask.dim() > 2:
                attn_mask = attn_mask.expand(*query.shape[:-2], *attn_mask.shape[-2:]).flatten(1, -3)
            flat = (x.flatten(1, -3) for x in (query, key, value))
            found = aten.scaled_dot_product_attention.default(*flat, attn_mask, 0.0, is_causal, scale=scale)
            return found.reshape(*query.shape[:-1], value.shape[-1])
        if not enable_gqa:
            return NotImplemented

        def wide(x: Tensor) -> Tensor:
            *lead, heads, rows, size = x.shape
            each = query.shape[-3] // heads
            return x.unsqueeze(-3).expand(*lead, heads, each, rows, size).reshape(*lead, -1, rows, size)

        return aten.scaled_dot_product_attention.default(
            query, wide(key), wide(value), attn_mask, 0.0, is_causal, scale=scale
        )

    return {
        aten.scaled_dot_product_attention.default: grouped,
        aten._scaled_dot_product_flash_attention_for_cpu.default: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: backward,
    }
