"""Losses against PyTorch's own."""

import pytest
import torch
from torch.nn import functional

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decompositions

CROSS_ENTROPY = decompositions()[torch.ops.aten.cross_entropy_loss.default]
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_smoothed_classes(shape, weighted, reduction):
    torch.manual_seed(0)
    x = torch.randn(shape)
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    if target.dim():
        target.view(-1)[:2] = 3
    weight = torch.rand(5) if weighted else None
    for ignored in (-100, 3):
        found = CROSS_ENTROPY(x, target, weight, REDUCTIONS[reduction], ignored, 0.2)
        expected = functional.cross_entropy(
            x, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=0.2
        )
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_plain_losses_are_left_alone():
    x = torch.randn(4, 5)
    assert CROSS_ENTROPY(x, torch.arange(4)) is NotImplemented
    assert CROSS_ENTROPY(x, x.softmax(1), None, 1, -100, 0.1) is NotImplemented


class Weighted(torch.nn.Module):
    """Loss of classes with weights, and the sum of those weights."""

    def forward(self, x):
        target, weights = torch.tensor([1, 2]), torch.tensor([0.5, 1.0, 2.0])
        return tuple(torch.ops.aten.nll_loss_forward(x, target, weights, 1, -100))


def test_the_sum_of_weights_is_given():
    x = torch.randn(2, 3)
    built = build_model(optimize_model(import_model(torch.export.export(Weighted(), (x,)))))
    for have, want in zip(built.run({"x": x.numpy()}), Weighted()(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(have), want)
