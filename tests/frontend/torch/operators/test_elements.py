"""Functions of single elements, and resizes, against PyTorch's own."""

import math

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
X = torch.tensor([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, 1e30, -1e-30])
Y = torch.tensor([-0.0, 3.0, -1.0, 2.0, math.nan, 5.0, 1e30, 1e-30])


def test_signs_and_lengths():
    table = decompositions()
    assert torch.equal(table[ATEN.signbit.default](X), torch.signbit(X))
    for other in (X, -1.0, 0.0):
        operator = ATEN.copysign.Tensor if isinstance(other, torch.Tensor) else ATEN.copysign.Scalar
        found = table[operator](X, other)
        assert torch.equal(found, torch.copysign(X, other)) and torch.equal(
            found.signbit(), torch.copysign(X, other).signbit()
        )
    torch.testing.assert_close(table[ATEN.hypot.default](X, Y), torch.hypot(X, Y), equal_nan=True)
    torch.testing.assert_close(table[ATEN.rrelu.default](X), torch.rrelu(X, training=False))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_corners_are_aligned_whatever_the_scale(mode):
    model = torch.nn.Upsample(scale_factor=(1.7, 0.6), mode=mode, align_corners=True).eval()
    x = torch.randn(1, 2, 9, 10)
    built = build_model(optimize_model(import_model(torch.export.export(model, (x,))), "cpu"))
    torch.testing.assert_close(
        torch.tensor(built.run({"input": x.numpy()})[0]), model(x), rtol=1e-4, atol=1e-5
    )
