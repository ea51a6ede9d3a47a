"""Counts of values, places of what is not zero, members, modes, and medians."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """``bincount``, ``nonzero_static``, ``mode``, ``nanmedian``, ``isin``, ``put``."""
    aten = torch.ops.aten

    def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
        """Counts of 0 to ``minlength`` - 1: other values are an error of the call, as wrong indices are.

        PyTorch's result is as long as the largest value asks for, which nobody knows before.
        """
        if minlength < 1 or x.dim() != 1:
            return NotImplemented
        if weights is None:
            kind, each = torch.int64, torch.ones(x.shape, dtype=torch.int64)
        else:
            kind = weights.dtype if weights.dtype == torch.float32 else torch.float64
            each = weights.to(kind)
        places = x.to(torch.int64)
        places = torch.where(places < 0, minlength, places)  # from the end they would count
        return torch.zeros(minlength, dtype=kind).scatter_add(0, places, each)

    def nonzero(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
        """The first places that are not zero, [size, axes], with rows of ``fill_value`` behind them."""
        if x.numel() == 0 or size == 0 or x.dim() == 0:
            shape = (size, x.dim())
            return torch.full(shape, fill_value, dtype=torch.int64)
        found = (x.reshape(-1) != 0).to(torch.int64)
        rank = found.cumsum(0) - 1
        row = torch.where((found == 1) & (rank < size), rank, size)
        flat = torch.zeros(size + 1, dtype=torch.int64).scatter(0, row, torch.arange(x.numel()))[:size]
        columns = []
        for extent in reversed(x.shape):
            columns.append(flat % extent)
            flat = torch.div(flat, extent, rounding_mode="trunc")
        places = torch.stack(columns[::-1], -1)
        return torch.where((torch.arange(size) < found.sum()).unsqueeze(-1), places, fill_value)

    def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
        """The least of the values that are there most often, and the last of its places."""
        if x.dim() == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64)
        rows = x.movedim(dim, -1)
        same = rows.unsqueeze(-1) == rows.unsqueeze(-2)
        often = same.sum(-1)
        most = often == often.amax(-1, keepdim=True)
        highest = math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).max
        value = torch.where(most, rows, highest).amin(-1, keepdim=True)
        order = torch.arange(1, rows.shape[-1] + 1)
        place = torch.where(rows == value, order, 1).amax(-1, keepdim=True) - 1
        value, place = value.movedim(-1, dim), place.movedim(-1, dim)
        return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))

    def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> Any:
        if x.dim() == 0 or not x.dtype.is_floating_point or x.shape[dim] == 0:
            return aten.median.dim(x, dim, keepdim)
        lost = x.isnan()
        values, places = aten.topk(torch.where(lost, math.inf, x), x.shape[dim], dim, False, True)
        count = (~lost).to(torch.int64).sum(dim, keepdim=True)
        middle = torch.div((count - 1).clamp(min=0), 2, rounding_mode="trunc")
        value, place = values.gather(dim, middle), places.gather(dim, middle)
        place = torch.where(value == math.inf, (x == math.inf).to(torch.int64).argmax(dim, True), place)
        value = torch.where(count == 0, math.nan, value)
        return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))

    def isin(x: Any, members: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
        if not isinstance(members, torch.Tensor):
            found = x == members
        elif not isinstance(x, torch.Tensor):
            found = (members == x).any()
        elif members.numel() == 0:
            found = torch.zeros(x.shape, dtype=torch.bool)
        else:
            found = (x.unsqueeze(-1) == members.reshape(-1)).any(-1)
        return ~found if invert else found

    def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        places = index.reshape(-1).to(torch.int64)
        places = torch.where(places < 0, places + x.numel(), places)
        flat, values = x.reshape(-1), source.reshape(-1).to(x.dtype)
        changed = flat.scatter_add(0, places, values) if accumulate else flat.scatter(0, places, values)
        return changed.reshape(x.shape)

    return {
        aten.bincount.default: bincount,
        aten.nonzero_static.default: nonzero,
        aten.mode.default: mode,
        aten.nanmedian.dim: nanmedian,
        aten.nanmedian.default: lambda x: nanmedian(x.reshape(-1), 0)[0],
        aten.put.default: put,
        aten.isin.Tensor_Tensor: isin,
        aten.isin.Tensor_Scalar: isin,
        aten.isin.Scalar_Tensor: isin,
    }
