"""Fourier transforms as products with matrices of cosines and sines, distances, and running values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


_MANY_POINTS, _BY_PRODUCT, _ONE_BY_ONE = 25, 1, 2
"""Points up to which ``cdist`` takes differences, and its modes that always and never take a product."""

_MANY_ELEMENTS = 64
"""Elements of a row up to which a place in it is found by comparing with all of them."""


_LARGEST = 1 << 31
"""Elements along an axis whose size has no bound."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Distances between rows, inverse transforms to real values, running products and extrema."""
    aten = torch.ops.aten

    def distances(x: Tensor, y: Tensor, p: float = 2.0, mode: int | None = None) -> Any:
        # PyTorch's own choice: many distances by a product.
        many = max(x.shape[-2], y.shape[-2]) > _MANY_POINTS or mode == _BY_PRODUCT
        if p == 2.0 and mode != _ONE_BY_ONE and many:
            squares = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
            return (squares - 2.0 * (x @ y.mT)).clamp(min=0.0).sqrt()
        apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
        if p == 2.0:
            return apart.square().sum(-1).sqrt()
        if p == 1.0:
            return apart.sum(-1)
        if p == float("inf"):
            return apart.amax(-1)
        if p == 0.0:
            return (apart != 0).to(x.dtype).sum(-1)
        return apart.pow(p).sum(-1).pow(1.0 / p)

    def pairs_apart(x: Tensor, p: float = 2.0) -> Any:
        """Distances of each two rows of a matrix, above the diagonal."""
        rows = x.shape[0]
        first, second = torch.triu_indices(rows, rows, 1)
        return distances(x, x, p, _ONE_BY_ONE).reshape(-1).index_select(0, first * rows + second)

    def inverse_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
        """Real values of a spectrum of which half is given along the last of ``dim``."""
        axis, size = dim[-1], int(last_dim_size)
        if len(dim) > 1:
            x = aten._fft_c2c(x, list(dim[:-1]), normalization, False)
        parts = torch.view_as_real(x)
        count = size // 2 + 1
        real, imaginary = (parts.select(-1, i).movedim(axis, -1)[..., :count] for i in (0, 1))
        if real.shape[-1] < count:
            missing = [0, count - real.shape[-1]]
            real, imaginary = (aten.constant_pad_nd(part, missing) for part in (real, imaginary))
        waves = torch.arange(count)
        # Whole turns less, in whole numbers: what follows is exact.
        places = (waves.unsqueeze(-1) * torch.arange(size)) % size
        angles = places.to(torch.float64) * (2 * math.pi / size)
        twice = torch.where((waves == 0) | (2 * waves == size), 1.0, 2.0).to(torch.float64).unsqueeze(-1)
        factor = twice / {0: 1.0, 1: math.sqrt(size), 2: float(size)}[normalization]
        cosines, sines = ((part * factor).to(real.dtype) for part in (angles.cos(), angles.sin()))
        return (real @ cosines - imaginary @ sines).movedim(-1, axis)

    def irfft(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
        if not x.dtype.is_complex:
            return NotImplemented
        size = 2 * (x.shape[dim] - 1) if n is None else n
        return inverse_real(x, [dim], {"forward": 0, "ortho": 1}.get(norm or "", 2), size)

    def overlapping(frames: Tensor, hop: int) -> Tensor:
        """Sum of frames [..., count, size], each ``hop`` places after the one before."""
        count, size = frames.shape[-2:]
        parts = -(-size // hop)
        frames = aten.constant_pad_nd(frames, [0, parts * hop - size])
        total: Any = 0
        for part in range(parts):
            row = frames[..., part * hop : (part + 1) * hop].flatten(-2)
            total = total + aten.constant_pad_nd(row, [part * hop, (parts - 1 - part) * hop])
        return total[..., : (count - 1) * hop + size]

    def istft(
        x: Tensor,
        n_fft: int,
        hop_length: int | None = None,
        win_length: int | None = None,
        window: Tensor | None = None,
        center: bool = True,
        normalized: bool = False,
        onesided: bool | None = None,
        length: int | None = None,
        return_complex: bool = False,
    ) -> Any:
        """Signal of a spectrogram; PyTorch's own looks at values to refuse windows that leave gaps."""
        if return_complex or not x.dtype.is_complex:
            return NotImplemented
        hop, size = hop_length or n_fft // 4, win_length or n_fft
        if window is None:
            window = torch.ones(size, dtype=x.dtype.to_real())
        before = (n_fft - size) // 2
        window = aten.constant_pad_nd(window, [before, n_fft - size - before])
        frames = inverse_real(x.mT, [x.dim() - 1], int(normalized) or 2, n_fft)  # of whole spectra, a half
        weights = window.square().expand(x.shape[-1], n_fft)
        signal = overlapping(frames * window, hop) / overlapping(weights, hop)
        start = n_fft // 2 if center else 0
        end = start + length if length is not None else signal.shape[-1] - start
        missing = max(0, end - signal.shape[-1])
        return aten.constant_pad_nd(signal[..., start:end], [0, missing])

    def subtracted(x: Tensor, other: float, alpha: float = 1) -> Any:
        """``other - x`` where a float makes floats of integers."""
        if x.dtype.is_floating_point or x.dtype.is_complex or not isinstance(other, float):
            return NotImplemented
        return aten.sub.Tensor(torch.full((), other), x, alpha=alpha)

    def moved(x: Tensor, step: int, border: Tensor) -> Tensor:
        """Elements so many places before along the last axis, and ``border`` where there are fewer."""
        size = x.shape[-1]
        if isinstance(size, int):
            return torch.cat([border.expand(*x.shape[:-1], step), x[..., : size - step]], -1)
        places = torch.arange(size) - step
        return torch.where(places < 0, border, x.index_select(-1, places.clamp(min=0)))

    def steps(size: Any) -> list[int]:
        """Powers of two below a size; of an open one, below the largest that it may have."""
        if not isinstance(size, int):
            size = int(min(size.node.shape_env.bound_sympy(size.node.expr).upper, _LARGEST))
        return [1 << n for n in range(max(0, size - 1).bit_length())]

    def cumulative_product(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        """Running product, in steps of 1, 2, 4, ... places."""
        if dtype is not None or not x.dtype.is_floating_point:
            x = x.to(dtype or torch.int64)
        if x.dim() == 0:
            return x.clone()
        x = x.movedim(dim, -1)
        for step in steps(x.shape[-1]):
            x = x * moved(x, step, x.new_ones((), dtype=x.dtype))
        return x.movedim(-1, dim)

    def running_extremum(x: Tensor, dim: int, sign: int) -> tuple[Tensor, Tensor]:
        """Largest element so far (least, for ``sign`` -1) and its place, the last one of equals.

        In steps of 1, 2, 4, ... places; NaN is the extremum of all that follows.
        """
        if x.dim() == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64)
        values = x.movedim(dim, -1)
        places = torch.arange(values.shape[-1]).expand(values.shape)
        for step in steps(values.shape[-1]):
            before, there = (moved(part, step, part[..., :1]) for part in (values, places))
            stays = values >= before if sign > 0 else values <= before
            if x.dtype.is_floating_point:
                stays = values.isnan() | (stays & ~before.isnan())
            values, places = torch.where(stays, values, before), torch.where(stays, places, there)
        return values.movedim(-1, dim), places.movedim(-1, dim)

    def places_in_order(
        ordered: Tensor,
        values: Any,
        *,
        out_int32: bool = False,
        right: bool = False,
        side: str | None = None,
        sorter: Tensor | None = None,
    ) -> Tensor:
        """Number of elements of each ordered row that come before each of the values."""
        if sorter is not None:
            ordered = ordered.gather(-1, sorter)
        if not isinstance(values, torch.Tensor):
            kind = torch.int64 if isinstance(values, int) else torch.get_default_dtype()
            kind = ordered.dtype if ordered.dtype.is_floating_point else kind
            values = torch.full((), values, dtype=kind)  # a constant tensor would be refused
        dtype = torch.int32 if out_int32 else torch.int64
        size, after = ordered.shape[-1], right or side == "right"

        def precedes(element: Tensor, value: Tensor) -> Tensor:
            return ~(element > value if after else element >= value)

        if size <= _MANY_ELEMENTS:
            ordered = ordered.unsqueeze(-2) if ordered.dim() > 1 else ordered
            return precedes(ordered, values.unsqueeze(-1)).sum(-1).to(dtype)
        # In halves: the number that precede, from its highest bit down.
        found, step = torch.zeros_like(values, dtype=torch.int64), 1 << (size.bit_length() - 1)
        while step:
            more = found + step
            place = (more - 1).clamp(max=size - 1)
            if ordered.dim() > 1:
                element = ordered.gather(-1, place)
            else:
                element = ordered.index_select(0, place.reshape(-1)).reshape(values.shape)
            found = torch.where((more <= size) & precedes(element, values), more, found)
            step //= 2
        return found.to(dtype)

    def bucketize(values: Any, ordered: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
        return places_in_order(ordered, values, out_int32=out_int32, right=right)

    return {
        aten.rsub.Scalar: subtracted,
        aten.cummax.default: lambda x, dim: running_extremum(x, dim, 1),
        aten.cummin.default: lambda x, dim: running_extremum(x, dim, -1),
        aten.searchsorted.Tensor: places_in_order,
        aten.searchsorted.Scalar: places_in_order,
        aten.bucketize.Tensor: bucketize,
        aten.bucketize.Scalar: bucketize,
        aten.cumprod.default: cumulative_product,
        aten.cdist.default: distances,
        aten._cdist_forward.default: distances,
        aten.pdist.default: pairs_apart,
        aten._pdist_forward.default: pairs_apart,
        aten._fft_c2r.default: inverse_real,
        aten.istft.default: istft,
        aten.fft_irfft.default: irfft,
    }
