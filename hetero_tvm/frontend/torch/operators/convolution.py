"""Gradients of convolutions, as convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """The gradient of a convolution of any rank, grouped, dilated or transposed."""
    aten = torch.ops.aten

    def spread(values: Sequence[int], rank: int) -> list[int]:
        return list(values) * rank if len(values) == 1 else list(values)

    def of_input(
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        """Gradient of a plain convolution's input, [N, C, ...]."""
        kernel = weight.shape[2:]
        missing = [
            size - ((out - 1) * s - 2 * p + d * (k - 1) + 1)
            for size, out, s, p, d, k in zip(
                x.shape[2:], grad.shape[2:], stride, padding, dilation, kernel, strict=True
            )
        ]
        return aten.convolution(grad, weight, None, stride, padding, dilation, True, missing, groups)

    def of_weight(
        grad: Tensor,
        x: Tensor,
        kernel: Sequence[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        """Gradient of a plain convolution's weight, [O, C / groups, ...]: the images are channels."""
        rank, batch = len(kernel), x.shape[0]
        space = list(range(3, 3 + rank))
        images = x.reshape(batch, groups, x.shape[1] // groups, *x.shape[2:])
        images = images.permute(2, 1, 0, *space).reshape(x.shape[1] // groups, groups * batch, *x.shape[2:])
        filters = grad.transpose(0, 1)
        found = aten.convolution(images, filters, None, dilation, padding, stride, False, [0] * rank, groups)
        for axis, size in enumerate(kernel):
            found = found.narrow(2 + axis, 0, size)  # what a stride skips gives more than the kernel has
        return found.transpose(0, 1)

    def convolution_backward(
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bias_sizes: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rank, kernel = weight.dim() - 2, weight.shape[2:]
        steps, pads, gaps = spread(stride, rank), spread(padding, rank), spread(dilation, rank)
        grad_x = grad_weight = grad_bias = None
        if output_mask[0] and transposed:
            grad_x = aten.convolution(grad, weight, None, steps, pads, gaps, False, [0] * rank, groups)
        elif output_mask[0]:
            grad_x = of_input(grad, x, weight, steps, pads, gaps, groups)
        if output_mask[1]:
            ends = (x, grad) if transposed else (grad, x)
            grad_weight = of_weight(*ends, kernel, steps, pads, gaps, groups)
        if output_mask[2]:
            grad_bias = grad.sum([0, *range(2, 2 + rank)])
        return grad_x, grad_weight, grad_bias

    return {aten.convolution_backward.default: convolution_backward}
