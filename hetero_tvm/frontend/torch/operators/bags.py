"""Bags of embeddings, as products with a matrix of which index lies in which bag."""

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
        places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
        bag_of = (places.unsqueeze(1) >= starts.unsqueeze(0)).to(torch.int64).sum(1) - 1
        bags = torch.arange(starts.shape[0], device=offsets.device)
        inside = bag_of.unsqueeze(0) == bags.unsqueeze(1)
        if include_last_offset:
            inside = inside & (places.unsqueeze(0) < offsets[-1])
        if padding_idx is not None and padding_idx >= 0:
            inside = inside & (indices != padding_idx).unsqueeze(0)
        rows = weight.index_select(0, indices)
        share = inside.to(weight.dtype)
        counts = share.sum(1, keepdim=True)
        if mode == _MAX:
            shown = torch.where(inside.unsqueeze(-1), rows.unsqueeze(0), float("-inf")).amax(1)
            found = torch.where(counts > 0, shown, 0.0)
        else:
            if per_sample_weights is not None:
                share = share * per_sample_weights.unsqueeze(0)
            found = share @ rows
            if mode == _MEAN:
                found = found / counts.clamp(min=1.0)
        sizes = counts.squeeze(1).to(offsets.dtype)
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

    return {
        aten.embedding_bag.default: embedding_bag,
        aten.embedding_bag.padding_idx: bag,
        aten._embedding_bag_forward_only.default: bag,
    }
