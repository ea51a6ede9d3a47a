"""Reductions of rows by index or segment, rows that are repeated, and the gradient of repeated edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Means of ``scatter_reduce``, ``index_reduce``, ``segment_reduce``, ``repeat_interleave``, and edges."""
    aten = torch.ops.aten

    def reduced(
        x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
    ) -> Any:
        """Means, of which the exporter's translation takes the sums."""
        if reduce != "mean" or x.dim() == 0:
            return NotImplemented
        src = src[tuple(slice(0, extent) for extent in index.shape)]
        once = torch.ones_like(src)
        count = torch.zeros_like(x).scatter_add(dim, index, once)
        total = torch.zeros_like(x).scatter_add(dim, index, src)
        if include_self:
            count, total = count + 1, total + x
        divisor = count.clamp(min=1)
        if x.dtype.is_floating_point:
            mean = total / divisor
        else:
            mean = torch.div(total, divisor, rounding_mode="floor")
        return mean if include_self else torch.where(count == 0, x, mean)

    def reduced_by_index(
        x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
    ) -> Any:
        if x.dim() == 0:
            return NotImplemented
        shape = [1] * source.dim()
        shape[dim] = index.numel()
        places = index.reshape(shape).to(torch.int64).expand(source.shape)
        name = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}[reduce]
        return aten.scatter_reduce.two(x, dim, places, source, name, include_self=include_self)

    def by_segment(
        data: Tensor,
        reduce: str,
        *,
        lengths: Tensor | None = None,
        indices: Tensor | None = None,
        offsets: Tensor | None = None,
        axis: int = 0,
        unsafe: bool = False,
        initial: float | None = None,
    ) -> Any:
        """Reductions of runs of rows, along the first axis; of none the reduction's own start."""
        if axis != 0 or indices is not None or (lengths is None) == (offsets is None):
            return NotImplemented
        ends = lengths.cumsum(0) if lengths is not None else offsets[1:]
        if ends.dim() != 1:
            return NotImplemented
        count = ends.shape[0]
        row = (torch.arange(data.shape[0]).unsqueeze(-1) >= ends.unsqueeze(0)).sum(-1)
        starts = {"sum": 0.0, "mean": math.nan, "max": -math.inf, "min": math.inf, "prod": 1.0}
        start = starts[reduce] if initial is None else initial
        if reduce == "mean" and initial is not None:
            return NotImplemented
        # Rows behind all segments go to one more, which is left out.
        wide = torch.full((count + 1, *data.shape[1:]), start, dtype=data.dtype)
        name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
        places = row.reshape(-1, *[1] * (data.dim() - 1)).expand(data.shape)
        keeps = reduce != "mean"
        return aten.scatter_reduce.two(wide, 0, places, data, name, include_self=keeps)[:count]

    def places_repeated(repeats: Tensor, *, output_size: int | None = None) -> Any:
        """Indices, each as often as ``repeats`` says."""
        if output_size is None:
            return NotImplemented
        ends = repeats.cumsum(0)
        return (torch.arange(output_size).unsqueeze(-1) >= ends.unsqueeze(0)).sum(-1)

    def repeated(
        x: Tensor, repeats: Tensor, dim: int | None = None, *, output_size: int | None = None
    ) -> Any:
        if output_size is None:
            return NotImplemented
        rows = x.reshape(-1) if dim is None else x
        axis = 0 if dim is None else dim
        given = repeats.reshape(-1).expand(rows.shape[axis])
        return rows.index_select(axis, places_repeated(given, output_size=output_size))

    def scattered(x: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str) -> Any:
        """``scatter`` that adds or multiplies tensors, or one number."""
        if not isinstance(src, torch.Tensor):
            src = torch.full(index.shape, src, dtype=x.dtype, device=x.device)
        if reduce == "add":
            return x.scatter_add(dim, index, src)
        return x.scatter_reduce(dim, index, src, "prod", include_self=True)

    def of_edges(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        """Gradient of ``x`` padded with its edges: each element's is the sum over its copies."""
        for number, before in enumerate(padding[::2]):
            axis = x.dim() - 1 - number
            size = x.shape[axis]
            source = (torch.arange(grad.shape[axis], device=x.device) - before).clamp(0, size - 1)
            shape = [*grad.shape[:axis], size, *grad.shape[axis + 1 :]]
            grad = torch.zeros(shape, dtype=grad.dtype, device=x.device).index_add(axis, source, grad)
        return grad

    return {
        aten.replication_pad1d_backward.default: of_edges,
        aten.replication_pad2d_backward.default: of_edges,
        aten.replication_pad3d_backward.default: of_edges,
        aten.scatter_reduce.two: reduced,
        aten.scatter.reduce: scattered,
        aten.scatter.value_reduce: scattered,
        aten.index_reduce.default: reduced_by_index,
        aten.segment_reduce.default: by_segment,
        aten.repeat_interleave.Tensor: places_repeated,
        aten.repeat_interleave.self_Tensor: repeated,
    }
