"""Max pooling with indices, its gradient, and batch normalization against PyTorch's own."""

import itertools

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
CASES = list(itertools.product((2, 3), (1, 2), (0, 1), (1, 2), (False, True)))


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "ceil"), CASES)
def test_max_pooling_takes_the_first_of_equals(kernel, stride, padding, dilation, ceil):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 10).relu()  # many zeros: ties
    settings = [kernel], [stride], [padding], [dilation], ceil
    values, places = decompositions()[ATEN.max_pool2d_with_indices.default](x, *settings)
    want, at = ATEN.max_pool2d_with_indices(x, *settings)
    assert torch.equal(values, want) and torch.equal(places, at)
    grad = torch.randn_like(want)
    found = decompositions()[ATEN.max_pool2d_with_indices_backward.default](grad, x, *settings, at)
    expected = ATEN.max_pool2d_with_indices_backward(grad, x, *settings, at)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_batch_normalization_gives_its_statistics(training):
    torch.manual_seed(0)
    x = torch.randn(4, 5, 3, 2, dtype=torch.float64)
    settings = (*(torch.rand(5, dtype=torch.float64) for _ in range(4)), training, 0.1, 1e-5)
    found = decompositions()[ATEN._native_batch_norm_legit_functional.default](x, *settings)
    for have, want in zip(found, ATEN._native_batch_norm_legit_functional(x, *settings), strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("shape", [(2, 3, 9, 10), (3, 8, 9), (2, 3, 7, 5, 6), (1, 2, 6, 4)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_maxima_of_windows_that_share_an_image(shape, size):
    torch.manual_seed(0)
    x = torch.randn(shape).relu()
    operator = ATEN.adaptive_max_pool3d if len(shape) == 5 else ATEN.adaptive_max_pool2d
    output = [size, size + 1, size][: 3 if len(shape) == 5 else 2]
    found = decompositions()[operator.default](x, output)
    for have, want in zip(found, operator(x, output), strict=True):
        assert torch.equal(have, want)
    backward = ATEN.adaptive_max_pool3d_backward if len(shape) == 5 else ATEN.adaptive_max_pool2d_backward
    grad = torch.randn_like(found[0])
    gradient = decompositions()[backward.default](grad, x, found[1])
    torch.testing.assert_close(gradient, backward(grad, x, found[1]))
    operator = ATEN._adaptive_avg_pool3d if len(shape) == 5 else ATEN._adaptive_avg_pool2d
    torch.testing.assert_close(decompositions()[operator.default](x, output), operator(x, output))
    backward = ATEN._adaptive_avg_pool3d_backward if len(shape) == 5 else ATEN._adaptive_avg_pool2d_backward
    torch.testing.assert_close(decompositions()[backward.default](grad, x), backward(grad, x))


def test_gradient_of_maxima_of_volumes():
    settings = ([3, 2, 2], [2, 2, 1], [1, 1, 0], [1, 1, 2], True)
    x = torch.randn(2, 3, 7, 6, 5)
    values, places = ATEN.max_pool3d_with_indices(x, *settings)
    found = decompositions()[ATEN.max_pool3d_with_indices_backward.default](values, x, *settings, places)
    torch.testing.assert_close(found, ATEN.max_pool3d_with_indices_backward(values, x, *settings, places))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("divisor", [None, 3])
def test_gradient_of_means(inside, divisor):
    for rank, settings in ((2, ([3], [2], [1])), (2, ([3, 2], [], [0, 1])), (3, ([3, 2, 2], [2, 1, 3], [1]))):
        x = torch.randn(2, 3, *(9, 8, 7)[:rank], dtype=torch.float64)
        for ceil in (True, False):
            given = (*settings, ceil, inside, divisor)
            grad = torch.randn_like(getattr(ATEN, f"avg_pool{rank}d")(x, *given))
            backward = getattr(ATEN, f"avg_pool{rank}d_backward")
            found = decompositions()[backward.default](grad, x, *given)
            torch.testing.assert_close(found, backward(grad, x, *given))


class Sums(torch.nn.Module):
    """Means of windows that divide by a number of their own."""

    def forward(self, x, volume):
        pool2, pool3 = torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d
        return (
            pool2(x, 3, divisor_override=2),
            pool2(x, (3, 2), 2, 1, ceil_mode=True, divisor_override=1),
            pool2(x[0], 3, 1, 1, count_include_pad=False, divisor_override=5),
            pool3(volume, (3, 2, 2), 2, (1, 0, 1), ceil_mode=True, divisor_override=3),
            pool2(x, 2),
        )


@pytest.mark.thorough
def test_divisor_of_means():
    given = torch.randn(2, 3, 9, 8), torch.randn(1, 2, 6, 5, 7)
    built = build_model(optimize_model(import_model(torch.export.export(Sums(), given)), "cpu"))
    inputs = {"x": given[0].numpy(), "volume": given[1].numpy()}
    for ours, truth in zip(built.run(inputs), Sums()(*given), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth, rtol=1e-5, atol=1e-5)
