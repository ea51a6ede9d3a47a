"""Assignment through masks, windows, diagonals and pieces of memory, stacks, and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """``x[mask] = values``, ``as_strided``, ``squeeze``, pieces of open sizes, stacks, and sorted forms."""
    aten = torch.ops.aten

    def in_order(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """``x`` with the elements of ``source``, one after another, where ``mask`` (of its shape) is true."""
        flat = mask.reshape(-1)
        taken = (flat.to(torch.int64).cumsum(0) - 1).clamp(min=0, max=max(source.numel() - 1, 0))
        values = source.reshape(-1).to(x.dtype).index_select(0, taken)
        return torch.where(flat, values, x.reshape(-1)).reshape(x.shape)

    def written(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Result of ``x.copy_(source)``; the exporter takes a smaller source for it."""
        return source.to(x.dtype).expand(x.shape)

    def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
        shape = torch.broadcast_shapes(x.shape, mask.shape)
        if source.numel() == 0:
            return x.expand(shape).clone()
        return in_order(x.expand(shape), mask.expand(shape), source)

    def index_put(
        x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
    ) -> Any:
        masks = [index for index in indices if index is not None]
        if len(masks) != 1 or masks[0].dtype not in (torch.bool, torch.uint8):
            return NotImplemented
        before = list(indices).index(masks[0]) if len(indices) == 1 else _first(indices)
        mask = masks[0].to(torch.bool)
        rest = x.dim() - before - mask.dim()
        wide = mask.reshape(*[1] * before, *mask.shape, *[1] * rest)
        inner = values.dim() - rest - before
        # One value for all selected elements, or one row for all selected rows.
        if values.numel() == 1 or inner <= 0 or (inner == 1 and values.shape[before] == 1):
            shape = list(values.shape)
            if inner == 1:
                shape = shape[:before] + [1] * mask.dim() + shape[before + 1 :]
            if values.numel() == 1:
                shape = []
            new = values.reshape(shape)
            return torch.where(wide, x + new if accumulate else new, x)
        if before or accumulate:
            return NotImplemented
        shape = [values.shape[0], *x.shape[mask.dim() :]]
        return in_order(x, wide.expand(x.shape), values.expand(shape))

    def _first(indices: Sequence[Tensor | None]) -> int:
        return next(i for i, index in enumerate(indices) if index is not None)

    def sort_stable(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        if x.dim() == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64)
        return aten.topk(x, x.shape[dim], dim, descending, True)

    def kth(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
        """The ``k``-th least element, counted from 1."""
        if x.dim() == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64)
        values, places = aten.topk(x, k, dim, False, True)
        found = (part.narrow(dim, k - 1, 1) for part in (values, places))
        return tuple(part if keepdim else part.squeeze(dim) for part in found)

    def median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
        if x.dim() == 0:
            return kth(x, 1)
        values, places = kth(x, (x.shape[dim] + 1) // 2, dim, keepdim)
        if x.dtype.is_floating_point:
            lost = x.isnan().any(dim, keepdim)
            values = torch.where(lost, float("nan"), values)
            places = torch.where(lost, x.isnan().to(torch.int64).argmax(dim, keepdim), places)
        return values, places

    def median_of_all(x: Tensor) -> Tensor:
        return median(x.reshape(-1), 0)[0]

    def strided_places(
        x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
    ) -> tuple[list[int], Tensor]:
        """Axes of ``x`` as they lie in memory, and the places there of what a view of it has."""
        order = sorted(range(x.dim()), key=lambda axis: -x.stride(axis))
        first = 0 if storage_offset is None else storage_offset - x.storage_offset()
        places = torch.full(list(size), first)
        for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
            along = [1] * len(size)
            along[axis] = extent
            places = places + step * torch.arange(extent).reshape(along)
        last = first + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
        if not x.permute(order).is_contiguous() or not 0 <= first <= last < x.numel():
            raise ValueError("as_strided of a tensor that does not lie in memory without gaps, or beyond it")
        return order, places.reshape(-1)

    def as_strided(
        x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
    ) -> Tensor:
        """Elements of memory by their places; the exporter's translation takes ``x`` to lie in order."""
        order, places = strided_places(x, size, stride, storage_offset)
        return x.permute(order).reshape(-1).index_select(0, places).reshape(size)

    def as_strided_scatter(
        x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
    ) -> Tensor:
        """``x`` with other elements at places of its memory."""
        order, places = strided_places(x, size, stride, storage_offset)
        memory = x.permute(order)
        flat = memory.reshape(-1).scatter(0, places, src.expand(size).reshape(-1))
        return flat.reshape(memory.shape).permute([order.index(axis) for axis in range(x.dim())])

    def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """``x`` with another diagonal; PyTorch's own decomposition copies in place, which is not exported."""
        if src.shape[-1] == 0:
            return x.clone()
        y = x.movedim((dim1, dim2), (-2, -1))
        row = torch.arange(y.shape[-2], device=x.device)
        column = torch.arange(y.shape[-1], device=x.device)
        places = (row + min(offset, 0)).clamp(0, src.shape[-1] - 1)
        by_row = src.index_select(src.dim() - 1, places).unsqueeze(-1)
        y = torch.where(column - row.unsqueeze(-1) == offset, by_row, y)
        return y.movedim((-2, -1), (dim1, dim2))

    def squeeze(x: Tensor, dim: int) -> Any:
        """The tensor itself, where the dimension is not of size 1."""
        return x.reshape(x.shape) if x.dim() and x.shape[dim] != 1 else NotImplemented

    def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
        """Pieces of ``size``, the last of what is left; the exporter takes no open size."""
        count = int(-(-x.shape[dim] // size)) if size else 1
        ends = [size * (index + 1) for index in range(count - 1)]
        bounds = zip([0, *ends], [*ends, x.shape[dim]], strict=True)
        return [aten.slice(x, dim, first, last) for first, last in bounds]

    def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
        return split(x, -(-x.shape[dim] // chunks), dim)

    def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
        """The end before the beginning, dimension by dimension; the exporter takes no open shift."""
        if not dims:
            return roll(x.reshape(-1), shifts, [0]).reshape(x.shape) if x.dim() != 1 else roll(x, shifts, [0])
        for shift, dim in zip(shifts, dims, strict=True):
            cut = x.shape[dim] - shift % x.shape[dim]
            x = torch.cat([aten.slice(x, dim, cut, x.shape[dim]), aten.slice(x, dim, 0, cut)], dim)
        return x

    def stacked(dims: int, axis: int) -> Callable[..., Any]:
        """``cat`` along ``axis`` of tensors of at least ``dims`` dimensions."""
        at_least = {1: torch.atleast_1d, 2: torch.atleast_2d, 3: torch.atleast_3d}[dims]

        def stack(tensors: Sequence[Tensor]) -> Tensor:
            parts = [at_least(tensor) for tensor in tensors]
            return torch.cat(parts, min(axis, parts[0].dim() - 1))

        return stack

    def column_stack(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t if t.dim() > 1 else t.reshape(-1, 1) for t in tensors], 1)

    return {
        aten.copy.default: written,
        aten.squeeze.dim: squeeze,
        **dict.fromkeys((aten.split.Tensor, aten.unsafe_split.Tensor), split),
        **dict.fromkeys((aten.chunk.default, aten.unsafe_chunk.default), chunk),
        aten.roll.default: roll,
        aten.hstack.default: stacked(1, 1),
        aten.vstack.default: stacked(2, 0),
        aten.dstack.default: stacked(3, 2),
        aten.column_stack.default: column_stack,
        aten.as_strided.default: as_strided,
        aten.as_strided_scatter.default: as_strided_scatter,
        aten.diagonal_scatter.default: diagonal_scatter,
        aten.kthvalue.default: kth,
        aten.median.dim: median,
        aten.median.default: median_of_all,
        aten.masked_scatter.default: masked_scatter,
        aten.index_put.default: index_put,
        aten.sort.stable: sort_stable,
        aten.argsort.stable: lambda x, *, stable, dim=-1, descending=False: sort_stable(
            x, dim=dim, descending=descending
        )[1],
    }


def in_part(torch: ModuleType) -> dict[Any, Callable[[Node], bool]]:
    """Operators of the table that PyTorch's exporter takes, except in such calls."""
    aten = torch.ops.aten
    pieces = (aten.split.Tensor, aten.unsafe_split.Tensor, aten.chunk.default, aten.unsafe_chunk.default)
    return {
        aten.squeeze.dim: keeps_dimension,
        aten.roll.default: has_open_shift,
        **dict.fromkeys(pieces, has_open_pieces),
    }


def keeps_dimension(node: Node) -> bool:
    """Whether a dimension to take away is not of size 1, and stays: the exporter takes it away regardless."""
    x = node.args[0].meta.get("val")
    return x is not None and x.dim() > 0 and x.shape[node.args[1]] != 1


def has_open_pieces(node: Node) -> bool:
    """Whether a split or chunk makes pieces of an open size."""
    pieces = node.meta.get("val") or ()
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    return any(not isinstance(piece.shape[dim], int) for piece in pieces[:1])


def has_open_shift(node: Node) -> bool:
    """Whether a roll is by a size that is open."""
    return not all(isinstance(shift, int) for shift in node.args[1])
