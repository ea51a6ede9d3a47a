"""Pooling with the places of its maxima, to sizes that are given, and normalization with its statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node

_SLICES = 16
"""Elements of a window up to which its maximum is taken of a slice for each."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Max pooling with indices, its gradient, means with a given divisor, pooling to sizes, batch norm."""
    aten = torch.ops.aten

    def pair(values: Sequence[int]) -> tuple[int, int]:
        return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])

    def windows(size: int, kernel: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
        """Number of windows along an axis."""
        room = size + 2 * pad - gap * (kernel - 1) - 1
        count = (room + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size + pad:
            count -= 1  # no window begins beyond the image
        return count

    def fill(size: int, kernel: int, step: int, pad: int, gap: int, count: int) -> int:
        """Elements behind an axis that its last window takes."""
        return max(0, (count - 1) * step + gap * (kernel - 1) + 1 - size - pad)

    def avg_pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """Sums of windows that are divided by a number that the caller chose."""
        if divisor_override is None:
            return NotImplemented
        pool, rank = (aten.avg_pool2d, 2) if len(kernel_size) == 2 else (aten.avg_pool3d, 3)
        kernel, pads = list(kernel_size), list(padding) * (rank // len(padding))
        steps = list(stride) * (rank // len(stride)) if stride else kernel
        rest: list[int] = []
        for axis in zip(x.shape[-rank:], kernel, steps, pads, (1,) * rank, strict=True):
            rest = [axis[3], fill(*axis, windows(*axis, ceil_mode)), *rest]
        means = pool(aten.constant_pad_nd(x, rest, 0.0), kernel, steps)
        return means * (math.prod(kernel) / divisor_override)

    def max_pool2d_with_indices(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        if x.dim() != 4 or not x.dtype.is_floating_point:
            return NotImplemented
        kernel, pads, gaps = pair(kernel_size), pair(padding), pair(dilation)
        steps = pair(stride) if len(stride) else kernel
        sizes = x.shape[2:]
        axes = list(zip(sizes, kernel, steps, pads, gaps, strict=True))
        out = [windows(*axis, ceil_mode) for axis in axes]
        right = [fill(*axis, count) for axis, count in zip(axes, out, strict=True)]
        wide = aten.constant_pad_nd(x, [pads[1], right[1], pads[0], right[0]], float("-inf"))
        rows = torch.arange(out[0], device=x.device).reshape(-1, 1) * steps[0] - pads[0]
        columns = torch.arange(out[1], device=x.device).reshape(1, -1) * steps[1] - pads[1]
        values, places = [], []
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                tops, lefts = i * gaps[0], j * gaps[1]
                rest = wide[:, :, tops : tops + (out[0] - 1) * steps[0] + 1 : steps[0]]
                values.append(rest[:, :, :, lefts : lefts + (out[1] - 1) * steps[1] + 1 : steps[1]])
                places.append((rows + tops) * sizes[1] + columns + lefts)
        stacked = torch.stack(values)
        chosen = stacked.argmax(0, keepdim=True)  # the first, as PyTorch takes it
        best = torch.stack(places).reshape(len(places), 1, 1, *out).expand(stacked.shape)
        return stacked.amax(0), best.gather(0, chosen).squeeze(0)

    def shares(size: int, count: int, device: Any) -> tuple[Tensor, Tensor]:
        """Places [count, taps] in an axis of the windows that share it evenly, and which are no repetition.

        Shorter windows repeat their last place.
        """
        taps = max(-(-(i + 1) * size // count) - i * size // count for i in range(count))
        output = torch.arange(count, device=device).unsqueeze(1)
        begins, ends = (torch.div(n * size, count, rounding_mode="floor") for n in (output, -output - 1))
        places = begins + torch.arange(taps, device=device)
        return torch.minimum(places, -ends - 1), places < -ends

    def divides(sizes: Sequence[int], counts: Sequence[int]) -> bool:
        return all(size % count == 0 for size, count in zip(sizes, counts, strict=True))

    def adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> Any:
        """Maxima of windows that share an image evenly, and their places in it."""
        rank, sizes = len(output_size), x.shape[x.dim() - len(output_size) :]
        if not x.dtype.is_floating_point:
            return NotImplemented
        if max(output_size) == 1:  # not a slice for each element of the image
            flat = x.flatten(-rank)
            chosen = flat.argmax(-1).reshape(*x.shape[:-rank], *output_size)
            return flat.amax(-1).reshape(chosen.shape), chosen
        if rank == 2 and x.dim() == 4 and divides(sizes, output_size):
            kernel = [n // o for n, o in zip(sizes, output_size, strict=True)]
            if math.prod(kernel) <= _SLICES:
                return max_pool2d_with_indices(x, kernel)
        taken, places = x, torch.zeros((), dtype=torch.int64, device=x.device)
        for axis, (size, count) in enumerate(zip(sizes, output_size, strict=True)):
            at, _ = shares(size, count, x.device)
            dim = x.dim() - rank + 2 * axis
            taken = taken.index_select(dim, at.reshape(-1)).unflatten(dim, at.shape)
            shape = [at.shape[n % 2] if n // 2 == axis else 1 for n in range(2 * rank)]
            places = places * size + at.reshape(shape)
        order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]  # outputs, then taps
        lead = x.dim() - rank
        taken = taken.permute([*range(lead), *(lead + n for n in order)]).flatten(-rank)
        places = places.permute(order).flatten(-rank).expand(taken.shape)
        chosen = taken.argmax(-1, keepdim=True)
        return taken.amax(-1), places.gather(-1, chosen).squeeze(-1)

    def adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Any:
        """Means of windows that share an image evenly, along one axis after the other."""
        rank, sizes = len(output_size), x.shape[x.dim() - len(output_size) :]
        if not x.dtype.is_floating_point:
            return NotImplemented
        if max(output_size) == 1:
            return x.mean([n - rank for n in range(rank)], keepdim=True)
        if divides(sizes, output_size):
            kernel = [n // o for n, o in zip(sizes, output_size, strict=True)]
            return (aten.avg_pool2d if rank == 2 else aten.avg_pool3d)(x, kernel, kernel)
        for axis, (size, count) in enumerate(zip(sizes, output_size, strict=True)):
            if size == count:
                continue
            at, inside = shares(size, count, x.device)
            dim, behind = x.dim() - rank + axis, [1] * (rank - axis - 1)
            taken = x.index_select(dim, at.reshape(-1)).unflatten(dim, at.shape)
            total = torch.where(inside.reshape(*inside.shape, *behind), taken, 0.0).sum(dim + 1)
            x = total / inside.sum(1).to(x.dtype).reshape(count, *behind)
        return x

    def along(grad: Tensor, axis: int, size: int, begins: Tensor, ends: Tensor, counts: Tensor) -> Tensor:
        """Gradient of the means of windows [begin, end) of an axis, each divided by its count."""
        place = torch.arange(size, device=grad.device)
        parts = ((place >= begins) & (place < ends)) / counts
        return (grad.movedim(axis, -1) @ parts.to(grad.dtype)).movedim(-1, axis)

    def of_shares(rank: int) -> Callable[..., Tensor]:
        """Gradient of means of windows that share an image evenly, along one axis after the other."""

        def gradient(grad: Tensor, x: Tensor) -> Tensor:
            for axis in range(-rank, 0):
                size, count = x.shape[axis], grad.shape[axis]
                output = torch.arange(count, device=x.device).unsqueeze(1)
                begins = torch.div(output * size, count, rounding_mode="floor")
                ends = -torch.div((-output - 1) * size, count, rounding_mode="floor")
                grad = along(grad, axis, size, begins, ends, ends - begins)
            return grad

        return gradient

    def of_means(rank: int) -> Callable[..., Tensor]:
        """Gradient of means of windows, along one axis after the other."""

        def gradient(
            grad: Tensor,
            x: Tensor,
            kernel_size: Sequence[int],
            stride: Sequence[int],
            padding: Sequence[int],
            ceil_mode: bool,
            count_include_pad: bool,
            divisor_override: int | None,
        ) -> Tensor:
            kernels = list(kernel_size) * (rank // len(kernel_size))
            steps = list(stride) * (rank // len(stride)) if stride else kernels
            pads = list(padding) * (rank // len(padding))
            for axis, kernel, step, pad in zip(range(-rank, 0), kernels, steps, pads, strict=True):
                size = x.shape[axis]
                begins = torch.arange(grad.shape[axis], device=x.device).unsqueeze(1) * step - pad
                ends = (begins + kernel).clamp(max=size + pad)
                counts = ends - begins if count_include_pad else ends.clamp(max=size) - begins.clamp(min=0)
                if divisor_override is not None:
                    counts = torch.ones_like(begins)
                grad = along(grad, axis, size, begins, ends, counts)
            return grad if divisor_override is None else grad / divisor_override

        return gradient

    def by_places(rank: int) -> Callable[..., Tensor]:
        """Gradient of maxima over ``rank`` axes: each one's part goes to the place that it came from."""

        def gradient(grad: Tensor, x: Tensor, *settings: Any) -> Tensor:
            places = settings[-1].flatten(-rank)
            flat = torch.zeros(
                *x.shape[:-rank], math.prod(x.shape[-rank:]), dtype=grad.dtype, device=x.device
            )
            return flat.scatter_add(-1, places, grad.flatten(-rank)).reshape(x.shape)

        return gradient

    def batch_norm(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, ...]:
        shape = [1, -1] + [1] * (x.dim() - 2)
        axes = [0, *range(2, x.dim())]
        if not training:
            mean, inverse = running_mean, torch.rsqrt(running_var + eps)
            new_mean, new_var, saved = running_mean.clone(), running_var.clone(), x.new_zeros(0)
        else:
            mean = x.mean(axes)
            variance = (x - mean.reshape(shape)).square().mean(axes)
            inverse = torch.rsqrt(variance + eps)
            count = x.numel() // x.shape[1]
            unbiased = variance * (count / max(count - 1, 1))
            new_mean = momentum * mean + (1 - momentum) * running_mean
            new_var = momentum * unbiased + (1 - momentum) * running_var
        result = (x - mean.reshape(shape)) * inverse.reshape(shape)
        if weight is not None:
            result = result * weight.reshape(shape)
        if bias is not None:
            result = result + bias.reshape(shape)
        ends = (mean, inverse) if training else (saved, saved)
        return result, *ends, new_mean, new_var

    return {
        aten.adaptive_max_pool1d.default: adaptive_max_pool,
        aten.adaptive_max_pool2d.default: adaptive_max_pool,
        aten.adaptive_max_pool3d.default: adaptive_max_pool,
        aten.adaptive_avg_pool2d.default: adaptive_avg_pool,
        aten.adaptive_avg_pool3d.default: adaptive_avg_pool,
        aten._adaptive_avg_pool2d.default: adaptive_avg_pool,
        aten._adaptive_avg_pool3d.default: adaptive_avg_pool,
        aten.avg_pool2d.default: avg_pool,
        aten.avg_pool3d.default: avg_pool,
        aten.max_pool2d_with_indices.default: max_pool2d_with_indices,
        aten.avg_pool2d_backward.default: of_means(2),
        aten.avg_pool3d_backward.default: of_means(3),
        aten._adaptive_avg_pool2d_backward.default: of_shares(2),
        aten._adaptive_avg_pool3d_backward.default: of_shares(3),
        aten.max_pool2d_with_indices_backward.default: by_places(2),
        aten.max_pool3d_with_indices_backward.default: by_places(3),
        aten.adaptive_max_pool2d_backward.default: by_places(2),
        aten.adaptive_max_pool3d_backward.default: by_places(3),
        aten._native_batch_norm_legit_functional.default: batch_norm,
    }


def in_part(torch: ModuleType) -> dict[Any, Callable[[Node], bool]]:
    """Operators of the table that PyTorch's exporter takes, except in such calls."""
    aten = torch.ops.aten
    return dict.fromkeys((aten.avg_pool2d.default, aten.avg_pool3d.default), has_divisor)


def has_divisor(node: Node) -> bool:
    """Whether a mean of windows divides by a number of its own, which PyTorch's exporter drops."""
    return len(node.args) > 6 and node.args[6] is not None
