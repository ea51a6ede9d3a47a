"""Gradients of convolutions against PyTorch's own, over groups, strides, padding, dilation and direction."""

import itertools

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}  # float64 sums in another order
CASES = list(itertools.product((1, 2), (1, 2, 3), (0, 1), (1, 2), (False, True)))


@pytest.mark.parametrize(("groups", "stride", "padding", "dilation", "transposed"), CASES)
def test_planes(groups, stride, padding, dilation, transposed):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 11, 9, dtype=torch.float64)
    shape = (4, 6 // groups, 3, 2) if transposed else (6, 4 // groups, 3, 2)
    weight = torch.randn(shape, dtype=torch.float64)
    more = [stride - 1 if transposed and stride > 1 else 0] * 2
    settings = [stride], [padding], [dilation], transposed, more, groups
    grad = torch.randn_like(ATEN.convolution(x, weight, None, *settings))
    arguments = grad, x, weight, [6], *settings, [True] * 3
    found = decompositions()[ATEN.convolution_backward.default](*arguments)
    for have, want in zip(found, ATEN.convolution_backward(*arguments), strict=True):
        torch.testing.assert_close(have, want, **TOLERANCE)


@pytest.mark.parametrize("sizes", [(9,), (5, 6, 7)], ids=["rows", "volumes"])
def test_other_ranks_and_only_what_is_wanted(sizes):
    torch.manual_seed(0)
    rank = len(sizes)
    x = torch.randn(3, 2, *sizes, dtype=torch.float64)
    weight = torch.randn(4, 2, *[3] * rank, dtype=torch.float64)
    settings = [2], [1], [1], False, [0], 1
    grad = torch.randn_like(ATEN.convolution(x, weight, None, *settings))
    found = decompositions()[ATEN.convolution_backward.default](
        grad, x, weight, None, *settings, [False, True, False]
    )
    expected = ATEN.convolution_backward(grad, x, weight, None, *settings, [False, True, False])
    torch.testing.assert_close(found[1], expected[1], **TOLERANCE)
    assert found[0] is None and found[2] is None
