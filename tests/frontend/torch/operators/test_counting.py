"""Counts, places, modes and medians against PyTorch's own."""

import math

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TABLE = decompositions()


@pytest.mark.parametrize("weights", [None, torch.float32, torch.float64, torch.int32])
def test_counts(weights):
    torch.manual_seed(0)
    x = torch.randint(0, 7, (40,))
    w = None if weights is None else (torch.rand(40) * 9).to(weights)
    found = TABLE[ATEN.bincount.default](x, w, 9)
    torch.testing.assert_close(found, torch.bincount(x, w, minlength=9))
    empty = torch.zeros(0, dtype=torch.int64)
    torch.testing.assert_close(
        TABLE[ATEN.bincount.default](empty, None, 3), torch.bincount(empty, minlength=3)
    )


def test_counts_of_values_beyond_the_given_length_are_errors():
    for values in ([0, 3], [-1, 0]):
        with pytest.raises(RuntimeError):
            TABLE[ATEN.bincount.default](torch.tensor(values), None, 3)
    assert TABLE[ATEN.bincount.default](torch.tensor([1]), None, 0) is NotImplemented


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("size", [0, 1, 5, 40])
def test_places_of_what_is_not_zero(shape, size):
    torch.manual_seed(0)
    x = (torch.rand(shape) * 3).round() if shape else torch.zeros(())
    x = torch.where(x == 2, math.nan, x)  # which is not zero either
    found = TABLE[ATEN.nonzero_static.default](x, size=size, fill_value=-7)
    torch.testing.assert_close(found, torch.nonzero_static(x, size=size, fill_value=-7))


@pytest.mark.parametrize("shape, dim", [((), -1), ((1,), 0), ((12,), 0), ((3, 9), -1), ((4, 3, 2), 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("keepdim", [False, True])
def test_modes(shape, dim, dtype, keepdim):
    torch.manual_seed(0)
    x = (torch.rand(shape) * 4 - 2).round().to(dtype)
    found = TABLE[ATEN.mode.default](x, dim, keepdim)
    for ours, theirs in zip(found, torch.mode(x, dim, keepdim), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_modes_of_infinite_values():
    x = torch.tensor([[math.inf, math.inf, 1.0], [-math.inf, math.inf, 3.0], [math.inf] * 3])
    torch.testing.assert_close(TABLE[ATEN.mode.default](x), tuple(torch.mode(x)))


@pytest.mark.parametrize("shape, dim", [((1,), 0), ((12,), 0), ((5, 9), -1), ((4, 3, 2), 0)])
def test_medians_without_nan(shape, dim):
    torch.manual_seed(0)
    x = torch.randn(shape)
    x = torch.where(x > 0.6, math.nan, torch.where(x < -1, -math.inf, x))
    x.select(dim, 0).fill_(math.nan)
    values, places = TABLE[ATEN.nanmedian.dim](x, dim, True)
    torch.testing.assert_close(values, torch.nanmedian(x, dim, True)[0], equal_nan=True)
    torch.testing.assert_close(x.gather(dim, places), values, equal_nan=True)  # of equal ones any
    torch.testing.assert_close(TABLE[ATEN.nanmedian.default](x), torch.nanmedian(x), equal_nan=True)


def test_a_median_that_is_infinite_is_not_the_place_of_a_nan():
    x = torch.tensor([[math.nan, math.inf, 1.0, math.inf], [math.nan, math.nan, math.nan, math.inf]])
    values, places = TABLE[ATEN.nanmedian.dim](x, -1)
    assert values.tolist() == [math.inf] * 2 and x.gather(-1, places[:, None]).isinf().all()


def test_medians_where_all_is_nan():
    x = torch.full((2, 3), math.nan)
    values, places = TABLE[ATEN.nanmedian.dim](x, -1)
    assert values.isnan().all() and places.tolist() == torch.nanmedian(x, -1)[1].tolist()


@pytest.mark.parametrize("accumulate", [False, True])
def test_put(accumulate):
    x, index = torch.arange(12.0).reshape(3, 4), torch.tensor([[0, -1], [5, 7]])
    source = torch.tensor([[9.0, 8.0], [7.0, math.nan]])
    found = TABLE[ATEN.put.default](x, index, source, accumulate)
    torch.testing.assert_close(found, x.put(index, source, accumulate), equal_nan=True)
    if accumulate:
        twice = torch.tensor([3, 3, 3])
        found = TABLE[ATEN.put.default](x, twice, torch.ones(3), True)
        torch.testing.assert_close(found, x.put(twice, torch.ones(3), True))


class Places(torch.nn.Module):
    def forward(self, bounds, x, rows):
        order = bounds.flip(0).argsort()
        return (
            torch.searchsorted(bounds, x),
            torch.searchsorted(bounds, x, side="right", out_int32=True),
            torch.searchsorted(rows, x, right=True),
            torch.searchsorted(bounds.flip(0), x, sorter=order),
            torch.bucketize(x, bounds, right=True),
        )


@pytest.mark.thorough
def test_places_between_bounds():
    bounds = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0])
    x = torch.tensor([[-3.0, -1.0, 0.2, 0.5], [2.0, 9.0, math.inf, math.nan]])
    rows = torch.stack([bounds, bounds * 2])
    given = bounds, x, rows
    built = build_model(optimize_model(import_model(torch.export.export(Places(), given)), "cpu"))
    inputs = dict(zip(("bounds", "x", "rows"), (value.numpy() for value in given), strict=True))
    for ours, truth in zip(built.run(inputs), Places()(*given), strict=True):
        assert torch.equal(torch.from_numpy(ours), truth) and torch.from_numpy(ours).dtype == truth.dtype


class Members(torch.nn.Module):
    def forward(self, x, numbers):
        many = torch.cat([torch.arange(60.0), torch.tensor([math.nan, math.inf])])
        return (
            torch.isin(x, many),
            torch.isin(x, many, invert=True),
            torch.isin(x, many.double(), assume_unique=True),
            torch.isin(x, 2.0),
            torch.isin(2.0, x),
            torch.isin(numbers, torch.arange(0, 120, 3)),
            torch.isin(numbers, torch.arange(0, 120, 3), invert=True),
            torch.isin(numbers, torch.zeros(0, dtype=torch.int64)),
            torch.bucketize(0.5, many[:60]),
        )


@pytest.mark.thorough
def test_members():
    x = torch.tensor([1.0, 2.5, math.nan, math.inf, 59.0, -1.0])
    given = x, torch.tensor([[1, 3, 117], [120, -3, 0]])
    built = build_model(optimize_model(import_model(torch.export.export(Members(), given)), "cpu"))
    inputs = {"x": given[0].numpy(), "numbers": given[1].numpy()}
    for ours, truth in zip(built.run(inputs), Members()(*given), strict=True):
        assert torch.equal(torch.from_numpy(ours), truth)
