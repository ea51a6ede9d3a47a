"""Functions of single elements, and resizes, against PyTorch's own."""

import math

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decomposed, decompositions
from tests.selection import thorough

ATEN = torch.ops.aten
X = torch.tensor([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, 1e30, -1e-30])
Y = torch.tensor([-0.0, 3.0, -1.0, 2.0, math.nan, 5.0, 1e30, 1e-30])


def test_signs_and_lengths():
    table = decompositions()
    assert torch.equal(table[ATEN.signbit.default](X), torch.signbit(X))
    assert torch.equal(table[ATEN.sign.default](Y), Y.sign())
    assert table[ATEN.sign.default](X.int()) is NotImplemented
    for other in (X, -1.0, 0.0):
        operator = ATEN.copysign.Tensor if isinstance(other, torch.Tensor) else ATEN.copysign.Scalar
        found = table[operator](X, other)
        assert torch.equal(found, torch.copysign(X, other)) and torch.equal(
            found.signbit(), torch.copysign(X, other).signbit()
        )
    torch.testing.assert_close(table[ATEN.hypot.default](X, Y), torch.hypot(X, Y), equal_nan=True)
    torch.testing.assert_close(table[ATEN.rrelu.default](X), torch.rrelu(X, training=False))


@pytest.mark.parametrize("mode", ["bilinear", *thorough(["bicubic"])])
def test_corners_are_aligned_whatever_the_scale(mode):
    model = torch.nn.Upsample(scale_factor=(1.7, 0.6), mode=mode, align_corners=True).eval()
    x = torch.randn(1, 2, 9, 10)
    built = build_model(optimize_model(import_model(torch.export.export(model, (x,))), "cpu"))
    torch.testing.assert_close(
        torch.tensor(built.run({"input": x.numpy()})[0]), model(x), rtol=1e-4, atol=1e-5
    )


class Angles(torch.nn.Module):
    def forward(self, y, x):
        return torch.atan2(y, x), torch.view_as_complex(torch.stack([x, y], -1)).angle(), torch.angle(x)


@pytest.mark.thorough
def test_angles_lie_in_the_quadrant_of_the_signs():
    """Signs of zeros, infinities and not-a-number too; 1e-6 is a few of float32's steps at pi."""
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 3e38, -3e38])
    y, x = (side.flatten() for side in torch.meshgrid(edges, edges, indexing="ij"))
    y, x = torch.cat([y, torch.randn(99)]), torch.cat([x, torch.randn(99)])
    model = Angles()
    built = build_model(optimize_model(import_model(torch.export.export(model, (y, x))), "cpu"))
    for found, expected in zip(built.run({"y": y.numpy(), "x": x.numpy()}), model(y, x), strict=True):
        found, known = torch.tensor(found), ~expected.isnan()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, equal_nan=True)
        assert torch.equal(found.signbit()[known], expected.signbit()[known])


def test_extrema_of_which_one_may_be_no_number():
    x = torch.tensor([1.0, float("nan"), float("nan"), float("-inf"), 2.0])
    y = torch.tensor([2.0, 3.0, float("nan"), float("nan"), float("inf")])
    torch.testing.assert_close(
        decompositions()[torch.ops.aten.fmax.default](x, y), torch.fmax(x, y), equal_nan=True
    )
    torch.testing.assert_close(
        decompositions()[torch.ops.aten.fmin.default](x, y), torch.fmin(x, y), equal_nan=True
    )


class Between(torch.nn.Module):
    def forward(self, x, n):
        return x.clamp(0, 0.5), x.clamp(-0.5, 1), n.clamp(0.5, 2), torch.clamp(n, max=1.5, min=0)


def test_bounds_of_two_kinds():
    x, n = torch.tensor([-1.0, 0.2, 0.7, 3.0, math.nan]), torch.tensor([-3, 0, 1, 5])
    program = torch.export.export(Between(), (x, n))
    built = build_model(optimize_model(import_model(program), "cpu"))
    for ours, truth in zip(built.run({"x": x.numpy(), "n": n.numpy()}), Between()(x, n), strict=True):
        assert torch.equal(torch.from_numpy(ours).nan_to_num(9.0), truth.nan_to_num(9.0))


class Ranges(torch.nn.Module):
    def forward(self, x):
        falling = torch.arange(0.1, -7.9, -4.0)
        return (
            torch.arange(0, 0.3, 0.1) * x,
            torch.arange(0.1, 3.1) * x,
            falling * x,
            torch.arange(2, 5, 2) + x,
        )


def test_ranges_of_fractions_are_counted_in_float64():
    x = torch.rand(1)
    built = build_model(optimize_model(import_model(torch.export.export(Ranges(), (x,))), "cpu"))
    for ours, truth in zip(built.run({"x": x.numpy()}), Ranges()(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth, rtol=1e-6, atol=1e-7)


class Lines(torch.nn.Module):
    """Ranges between tensors."""

    def forward(self, a, b):
        kinds = (torch.float32, torch.float64, torch.int64)
        between = [torch.linspace(a, b, n, dtype=kind) for n in (1, 2, 5) for kind in kinds]
        mixed = torch.linspace(a, 3.3, 4), torch.linspace(0.1, b, 4), torch.logspace(a, b, 1, base=3.0)
        return *between, *mixed, torch.linspace(a, b, 0)


@pytest.mark.thorough
def test_ranges_between_tensors():
    ends = torch.tensor(1.3), torch.tensor(7.7)
    program = decomposed(torch.export.export(Lines(), ends))
    for ours, truth in zip(program.module()(*ends), Lines()(*ends), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-6, atol=0)
    built = build_model(optimize_model(import_model(torch.export.export(Lines(), ends)), "cpu"))
    inputs = {"a": ends[0].numpy(), "b": ends[1].numpy()}
    for ours, truth in zip(built.run(inputs)[:12], Lines()(*ends)[:12], strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth, rtol=1e-6, atol=0)


class Truth(torch.nn.Module):
    def forward(self, x):
        return *(x > 0).max(1), *(x > 1).min(0, keepdim=True)


def test_extrema_of_truth_values_and_their_places():
    x = torch.randn(4, 6)
    program = decomposed(torch.export.export(Truth(), (x,)))
    assert all(torch.equal(a, b) for a, b in zip(program.module()(x), Truth()(x), strict=True))
    assert not any(
        n.target == ATEN.max.dim and n.args[0].meta["val"].dtype == torch.bool for n in program.graph.nodes
    )


class Truths(torch.nn.Module):
    def forward(self, a, b):
        return a + b, a * b, a + a, a.int() + b


def test_sums_and_products_of_truth_values():
    a, b = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    built = build_model(optimize_model(import_model(torch.export.export(Truths(), (a, b))), "cpu"))
    for ours, theirs in zip(built.run({"a": a.numpy(), "b": b.numpy()}), Truths()(a, b), strict=True):
        assert torch.equal(torch.tensor(ours), theirs)


class Bytes(torch.nn.Module):
    def forward(self, x):
        return -x, 3 - x, x // 2, x.sign(), x.abs()


@pytest.mark.thorough
def test_bytes_that_change_their_sign_wrap():
    x = torch.tensor([250, 3, 17, 0], dtype=torch.uint8)
    built = build_model(optimize_model(import_model(torch.export.export(Bytes(), (x,))), "cpu"))
    for ours, theirs in zip(built.run({"x": x.numpy()}), Bytes()(x), strict=True):
        assert torch.equal(torch.tensor(ours), theirs)


class Shifted(torch.nn.Module):
    def forward(self, x, n):
        return x >> 2, x << 1, x >> n, x << n, torch.bitwise_right_shift(x, n), (x >> 4) & 7


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.uint8, *thorough([torch.int8, torch.int64])])
def test_shifts(dtype):
    """Bits of packed weights; PyTorch's exporter takes bytes for signed ones, and has no ``x >> n``."""
    x = torch.tensor([0, 1, 127, -128, -56, -1]).to(dtype)
    n = torch.tensor([0, 1, 2, 3, 7, 5], dtype=dtype)
    built = build_model(optimize_model(import_model(torch.export.export(Shifted(), (x, n))), "cpu"))
    for ours, theirs in zip(built.run({"x": x.numpy(), "n": n.numpy()}), Shifted()(x, n), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs)


class Extrema(torch.nn.Module):
    def forward(self, x):
        least, most = x.aminmax()
        return least, most, torch.amax(x), torch.amin(x, (), True), x.amax(1)


@pytest.mark.thorough
def test_extrema_of_all_dimensions():
    """As quantisers take them; the scalar operand of a reduction stays what it is."""
    x = torch.randn(2, 3, 4)
    built = build_model(optimize_model(import_model(torch.export.export(Extrema(), (x,))), "cpu"))
    for found, expected in zip(built.run({"x": x.numpy()}), Extrema()(x), strict=True):
        assert found.shape == tuple(expected.shape) and (found == expected.numpy()).all()
