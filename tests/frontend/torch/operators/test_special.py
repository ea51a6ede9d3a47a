"""Special functions against PyTorch's own, at their poles and ends too."""

import math

import pytest
import torch

import hetero_tvm
from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TABLE = decompositions()
ENDS = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1e-6, -1e-6, 1e6, 30.5, -30.5, math.inf, math.nan]
FUNCTIONS = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "i0": torch.i0,
    "special_i0e": torch.special.i0e,
    "special_i1": torch.special.i1,
    "special_i1e": torch.special.i1e,
    "erfinv": torch.erfinv,
    "erfc": torch.erfc,
    "special_erfcx": torch.special.erfcx,
    "special_ndtri": torch.special.ndtri,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(name, dtype):
    torch.manual_seed(0)
    spread = torch.cat([torch.randn(500) * scale for scale in (0.3, 3.0, 20.0)])
    spread = {"erfinv": spread.clamp(-0.9999, 0.9999), "special_ndtri": spread.sigmoid()}.get(name, spread)
    x = torch.cat([torch.tensor(ENDS), spread])
    x = x.to(dtype)
    found, expected = TABLE[getattr(ATEN, name).default](x), FUNCTIONS[name](x)
    exact = FUNCTIONS[name](x.double())
    assert found.dtype == dtype
    if dtype == torch.float32:  # PyTorch's own float32 is off by more near the poles
        torch.testing.assert_close(found, exact.float(), rtol=2e-6, atol=2e-6, equal_nan=True)
        wide = dict(rtol=1e-3, atol=1e-4) if name in ("digamma", "lgamma") else dict(rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, expected, **wide, equal_nan=True)
    else:
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-11, equal_nan=True)


@pytest.mark.thorough  # builds a library
def test_logarithms_of_tails_are_finite(tmp_path):
    class Tails(torch.nn.Module):
        def forward(self, x):
            return torch.special.log_ndtr(x), torch.special.erfcx(x), x.erfc().log()

    x = torch.tensor([-30.0, -8.0, -3.0, 0.0, 0.4, 0.6, 4.0, 9.0])
    model = hetero_tvm.import_model(torch.export.export(Tails(), (x,)))
    path = tmp_path / "tails.so"
    hetero_tvm.build_model(hetero_tvm.optimize_model(model)).export(path)
    net = hetero_tvm.load(path)
    for found, expected in zip(net(x.numpy()), Tails()(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3)])
def test_shapes_without_elements_or_axes(shape):
    for name, function in FUNCTIONS.items():
        found = TABLE[getattr(ATEN, name).default](torch.full(shape, 0.3))
        torch.testing.assert_close(found, function(torch.full(shape, 0.3)))


def test_whole_numbers_become_floats():
    x = torch.arange(1, 5)
    torch.testing.assert_close(TABLE[ATEN.lgamma.default](x), torch.lgamma(x))


def test_gamma_of_matrices():
    x = torch.tensor([2.5, 3.0, 17.0])
    found = TABLE[ATEN.mvlgamma.default](x, 3)
    torch.testing.assert_close(found, torch.mvlgamma(x, 3))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_divisors(dtype):
    torch.manual_seed(0)
    high = min(torch.iinfo(dtype).max, 10**15)
    x, y = (torch.randint(-high, high, (300,)).to(dtype) for _ in range(2))
    x = torch.cat([x, torch.tensor([0, 0, 5, 34, 1], dtype=dtype)])
    y = torch.cat([y, torch.tensor([0, 7, 0, 55, 1], dtype=dtype)])
    torch.testing.assert_close(TABLE[ATEN.gcd.default](x, y), torch.gcd(x, y))
    small = x % 11, y % 7
    torch.testing.assert_close(TABLE[ATEN.lcm.default](*small), torch.lcm(*small))


def test_divisors_of_neighbours_in_fibonaccis_series_take_the_most_steps():
    a, b = 1, 1
    while a + b < 2**63:
        a, b = a + b, a
    x, y = torch.tensor([a]), torch.tensor([b])
    assert TABLE[ATEN.gcd.default](x, y).item() == 1


@pytest.mark.parametrize("order", [0, 1])
def test_slopes_of_digamma(order):
    torch.manual_seed(0)
    x = torch.cat(
        [torch.randn(500) * scale for scale in (0.3, 3.0, 20.0)] + [torch.tensor([1e-3, 1e6, math.inf])]
    )
    x = x.double()
    found, expected = TABLE[ATEN.polygamma.default](order, x), torch.polygamma(order, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert TABLE[ATEN.polygamma.default](3, x) is NotImplemented
