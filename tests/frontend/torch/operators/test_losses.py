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


EXTREMES = torch.tensor([-300.0, -90.0, -1.0, 0.0, 2.0, 90.0, 300.0])
SOFT = {
    "log_sigmoid": lambda x: functional.logsigmoid(x),
    "logaddexp": lambda x: torch.logaddexp(x, -x / 2),
    "logaddexp2": lambda x: torch.logaddexp2(x, -x / 2),
    "infinite": lambda x: torch.logaddexp(x / 0.0, x / 0.0),
    "logcumsumexp": lambda x: torch.logcumsumexp(torch.stack([x, -x], 1), 0),
    "entropy": lambda x: functional.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none"),
    "weighted": lambda x: functional.binary_cross_entropy_with_logits(
        x, (x > 1).float(), weight=x.abs(), pos_weight=x.abs() + 1, reduction="sum"
    ),
}


class Soft(torch.nn.Module):
    """One of the functions above."""

    def __init__(self, name):
        super().__init__()
        self.function = SOFT[name]

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", SOFT)
def test_logarithms_of_exponentials_beyond_float32(name):
    exported = torch.export.export(Soft(name), (EXTREMES,))
    (found,) = build_model(optimize_model(import_model(exported))).run({"x": EXTREMES.numpy()})
    torch.testing.assert_close(torch.as_tensor(found), Soft(name)(EXTREMES), equal_nan=True)
