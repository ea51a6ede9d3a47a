"""Bags of embeddings, as rows that are added at the place of their bag."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SUM, _MEAN, _MAX = range(3)


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """``torch.nn.EmbeddingBag`` in its three modes; the sizes of bags may come at run time."""
    aten = torch.ops.aten

    def bags_of(size: int, starts: Tensor) -> Tensor:
        """The bag that each row is in."""
        begins = torch.zeros(size + 1, dtype=torch.int64, device=starts.device)
        begins = begins.index_add(0, starts, torch.ones_like(starts, dtype=torch.int64))
        return begins.cumsum(0)[:size] - 1

    def bag(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = _SUM,
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = -1,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        starts = offsets[:-1] if include_last_offset else offsets
        size, bags = indices.shape[0], starts.shape[0]
        bag_of = bags_of(size, starts)
        inside = torch.ones_like(indices, dtype=torch.bool)
        if include_last_offset:
            inside = torch.arange(size, dtype=offsets.dtype, device=offsets.device) < offsets[-1]
        if padding_idx is not None and padding_idx >= 0:
            inside = inside & (indices != padding_idx)
        rows = weight.index_select(0, indices)
        counts = torch.zeros(bags, dtype=weight.dtype, device=weight.device)
        counts = counts.index_add(0, bag_of, inside.to(weight.dtype))
        if mode == _MAX:
            shown = torch.where(inside.unsqueeze(-1), rows, float("-inf"))
            least = torch.full((bags, weight.shape[1]), float("-inf"), dtype=rows.dtype, device=rows.device)
            found = least.scatter_reduce(0, bag_of.unsqueeze(-1).expand_as(shown), shown, "amax")
            found = torch.where(counts.unsqueeze(-1) > 0, found, 0.0)
        else:
            if per_sample_weights is not None:
                rows = rows * per_sample_weights.unsqueeze(-1)
            rows = torch.where(inside.unsqueeze(-1), rows, 0.0)
            none = torch.zeros(bags, weight.shape[1], dtype=rows.dtype, device=rows.device)
            found = none.index_add(0, bag_of, rows)
            if mode == _MEAN:
                found = found / counts.clamp(min=1.0).unsqueeze(-1)
        sizes = counts.to(offsets.dtype)
        return found, bag_of, sizes, torch.zeros_like(sizes)

    def embedding_bag(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = _SUM,
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return bag(weight, indices, offsets, False, mode, False, per_sample_weights, include_last_offset)

    def with_facts(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = _SUM,
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int = -1,
    ) -> Any:
        """Bags, and what their gradients read: the bag of each row, sizes, and rows of the largest values."""
        if include_last_offset or mode == _MAX:
            return NotImplemented
        found, bag_of, sizes, zeros = bag(
            weight, indices, offsets, False, mode, False, per_sample_weights, False, padding_idx
        )
        if mode == _MEAN:
            return found, bag_of.to(indices.dtype), sizes, sizes.clone()
        bag_of = bag_of.to(indices.dtype) if padding_idx >= 0 else indices.new_zeros(0)
        return found, bag_of, zeros, zeros.clone()

    def gradient(
        grad: Tensor,
        indices: Tensor,
        offsets: Tensor,
        _bag_of: Tensor,  # which PyTorch leaves empty for sums
        sizes: Tensor,
        _largest: Tensor,
        rows: int,
        scale_grad_by_freq: bool,
        mode: int,
        sparse: bool,
        per_sample_weights: Tensor | None,
        padding_idx: int = -1,
    ) -> Any:
        """Gradient of the table: each row's is the sum of those of its bags."""
        if scale_grad_by_freq or sparse or mode == _MAX:
            return NotImplemented
        if mode == _MEAN:
            grad = grad / sizes.clamp(min=1).to(grad.dtype).unsqueeze(-1)
        shares = grad.index_select(0, bags_of(indices.shape[0], offsets))
        if per_sample_weights is not None:
            shares = shares * per_sample_weights.unsqueeze(-1)
        if padding_idx >= 0:
            shares = torch.where((indices != padding_idx).unsqueeze(-1), shares, 0.0)
        none = torch.zeros(rows, grad.shape[1], dtype=grad.dtype, device=grad.device)
        return none.index_add(0, indices, shares)

    return {
        aten._embedding_bag.default: with_facts,
        aten._embedding_bag_backward.default: gradient,
        aten.embedding_bag.default: embedding_bag,
        aten.embedding_bag.padding_idx: bag,
        aten._embedding_bag_forward_only.default: bag,
    }
