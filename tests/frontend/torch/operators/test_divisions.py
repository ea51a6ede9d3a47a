"""Rounded quotients of integers and remainders of floats, against PyTorch's own."""

import numpy as np
import pytest
import torch

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.selection import thorough


class Quotients(torch.nn.Module):
    def forward(self, x, y):
        small = 7 if x.dtype == torch.uint8 else -7
        return tuple(torch.div(x, by, rounding_mode=mode) for by in (y, small) for mode in ("trunc", "floor"))


class Remainders(torch.nn.Module):
    def forward(self, x, y):
        return x % y, x % -0.7, torch.remainder(5.0, y)


def compare(model, x, y):
    built = build_model(optimize_model(import_model(torch.export.export(model, (x, y), strict=False))))
    for found, wanted in zip(built.run({"x": x.numpy(), "y": y.numpy()}), model(x, y), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.int64, *thorough([torch.int8, torch.uint8, torch.int32])])
def test_quotients_of_integers_have_all_their_digits(dtype):
    torch.manual_seed(0)
    most = min(torch.iinfo(dtype).max, 2**60)
    low = 0 if dtype == torch.uint8 else -most
    x, y = (torch.randint(low, most, (200,), dtype=dtype) for _ in range(2))
    y[:100] = torch.randint(0 if dtype == torch.uint8 else -20, 20, (100,), dtype=dtype)
    y[y == 0] = 3
    compare(Quotients(), x, y)


@pytest.mark.thorough
def test_remainders_of_large_quotients():
    torch.manual_seed(0)
    x, y = torch.randn(200) * 1e6, torch.randn(200)
    x[:6] = torch.tensor([0.0, -0.0, -3.0, 3.0, 6.0, -6.0])
    y[:6] = torch.tensor([2.0, 2.0, float("inf"), float("-inf"), 3.0, 3.0])
    compare(Remainders(), x, y)
