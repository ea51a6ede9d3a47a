"""Inverse real Fourier transforms and distances against PyTorch's own."""

import math

import numpy as np
import pytest
import torch

from hetero_tvm import Span, load
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decomposed, decompositions
from tests.selection import thorough

ATEN = torch.ops.aten


@pytest.mark.parametrize("size", [None, 16, 15, 8, 21])
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_inverse_transforms_of_even_odd_cut_and_padded_sizes(size, norm):
    torch.manual_seed(0)
    x = torch.randn(3, 9, 2, dtype=torch.complex128)
    found = decompositions()[ATEN.fft_irfft.default](x, size, 1, norm)
    torch.testing.assert_close(found, torch.fft.irfft(x, size, 1, norm))


def test_several_axes():
    x = torch.randn(3, 4, 5, dtype=torch.complex128)
    found = decompositions()[ATEN._fft_c2r.default](x, [1, 2], 2, 8)
    torch.testing.assert_close(found, torch.fft.irfftn(x, (4, 8), (1, 2)))


@pytest.mark.parametrize(
    "options",
    [
        {"hop_length": 4},
        {"hop_length": 5, "win_length": 12, "normalized": True},
        {"hop_length": 4, "center": False, "window": torch.hamming_window(16, dtype=torch.float64)},
        {"hop_length": 8, "length": 37, "onesided": False},
        {"hop_length": 3, "length": 200},
    ],
    ids=str,
)
def test_signals_of_spectrograms(options):
    torch.manual_seed(0)
    whole = options.get("onesided") is False
    window = options.get("window", torch.hann_window(options.get("win_length", 16), dtype=torch.float64))
    x = torch.randn(2, 16 if whole else 9, 12, dtype=torch.complex128)
    given = {**options, "window": window}
    want = torch.istft(x, 16, **given)
    torch.testing.assert_close(decompositions()[ATEN.istft.default](x, 16, **given), want)


@pytest.mark.thorough
def test_a_filter_of_spectrograms_is_imported():
    class Filter(torch.nn.Module):
        def forward(self, x):
            window = torch.hann_window(16)
            spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
            return torch.istft(spectrum * spectrum.abs().sigmoid(), 16, 4, window=window, length=64)

    x = torch.randn(2, 64)
    built = build_model(optimize_model(import_model(torch.export.export(Filter(), (x,)))))
    np.testing.assert_allclose(built.run({"x": x.numpy()})[0], Filter()(x).numpy(), atol=1e-5)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p):
    x, y = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    torch.testing.assert_close(decompositions()[ATEN.cdist.default](x, y, p), torch.cdist(x, y, p))


@pytest.mark.parametrize("shape, dim", [((2, 7), 1), ((5, 3), 0), ((1,), 0), ((), 0), ((3, 0), 1)], ids=str)
def test_running_products(shape, dim):
    for x in (torch.randn(shape), torch.randint(-2, 3, shape), torch.rand(shape) > 0.3):
        found = decompositions()[torch.ops.aten.cumprod.default](x, dim)
        torch.testing.assert_close(found, x.cumprod(dim))


@pytest.mark.parametrize("shape, dim", [((2, 7), 1), ((5, 3), 0), ((1,), 0), ((), 0), ((3, 0), 1)], ids=str)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extrema_and_the_last_of_their_places(name, shape, dim):
    lost = torch.where(torch.rand(shape) < 0.2, math.nan, torch.randn(shape))
    for x in (torch.randn(shape), torch.randint(-2, 3, shape), torch.full(shape, -math.inf), lost):
        if x.numel() == 0 and not x.is_floating_point():
            continue
        found = decompositions()[getattr(ATEN, name).default](x, dim)
        want = getattr(torch, name)(x, dim)
        torch.testing.assert_close(tuple(found), (want.values, want.indices), equal_nan=True)


class Least(torch.nn.Module):
    """The least whole number so far: places of the next delimiter in GroundingDINO."""

    def forward(self, x):
        return x.cummin(1).values


@pytest.mark.thorough
def test_running_extrema_of_whole_numbers_compile():
    x = torch.tensor([[5, 7, -3, 2**62, -(2**63)], [2**63 - 1, 9, 9, 8, 10]])
    built = build_model(optimize_model(import_model(torch.export.export(Least(), (x,)))))
    (found,) = built.run({"x": x.numpy()})
    assert torch.equal(torch.from_numpy(found), Least()(x))


@pytest.mark.parametrize("right", [False, True])
def test_places_in_ordered_rows(right):
    search = decompositions()[ATEN.searchsorted.Tensor]
    row = torch.tensor([-1.0, 0.0, 0.0, 2.0, math.inf])
    values = torch.tensor([[-2.0, -1.0, 0.0], [1.0, math.inf, math.nan]])
    for ordered, x in ((row, values), (torch.stack([row, row + 1]), values), (row[:0], values)):
        found = search(ordered, x, right=right, out_int32=True)
        assert torch.equal(found, torch.searchsorted(ordered, x, right=right, out_int32=True))
    turned, order = row.flip(0), torch.arange(4, -1, -1)
    found = search(turned, values, side="right" if right else "left", sorter=order)
    assert torch.equal(found, torch.searchsorted(row, values, right=right))
    scalar = decompositions()[ATEN.searchsorted.Scalar]
    assert scalar(row, 0.5, right=right).item() == torch.searchsorted(row, 0.5, right=right).item()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, *thorough([torch.int64, torch.int32])])
@pytest.mark.thorough
def test_integers_are_subtracted_from_a_float(dtype):
    class Hidden(torch.nn.Module):
        def forward(self, mask):
            return (1.0 - mask if dtype is not torch.bool else 1.0 - mask.int()) * -1e4

    mask = torch.tensor([[1, 0, 1]]).to(dtype)
    program = decomposed(torch.export.export(Hidden(), (mask,)))
    torch.testing.assert_close(program.module()(mask), Hidden()(mask))
    subtract = decompositions()[ATEN.rsub.Scalar]
    assert subtract(torch.ones(2), 1.0) is NotImplemented and subtract(mask, 1) is NotImplemented
    assert import_model(torch.export.export(Hidden(), (mask,))).signature.outputs[0].dtype == "float32"


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_distances_of_many_points(mode):
    torch.manual_seed(0)
    x, y = torch.randn(2, 30, 5), torch.randn(2, 40, 5)
    found = decompositions()[ATEN._cdist_forward.default](x, y, 2.0, mode)
    torch.testing.assert_close(found, ATEN._cdist_forward(x, y, 2.0, mode))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [65, 128, 1000])
def test_places_in_long_rows(size, right):
    torch.manual_seed(0)
    rows = torch.randint(0, 50, (3, size)).sort(-1).values
    values = torch.randint(-2, 53, (3, 70))
    search = decompositions()[ATEN.searchsorted.Tensor]
    assert torch.equal(search(rows, values, right=right), torch.searchsorted(rows, values, right=right))
    assert torch.equal(search(rows[0], values, right=right), torch.searchsorted(rows[0], values, right=right))


def test_distances_of_each_two_rows():
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        found = decompositions()[torch.ops.aten.pdist.default](x, p)
        torch.testing.assert_close(found, torch.nn.functional.pdist(x, p))


def test_a_program_with_an_inverse_transform_alone_has_no_constants_of_its_own():
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1])

    decomposed(torch.export.export(Net(), (torch.randn(2, 7),)))


@pytest.mark.thorough
@pytest.mark.parametrize("most", [40, None], ids=["bounded", "unbounded"])
def test_running_values_along_an_open_axis(most, tmp_path):
    class Running(torch.nn.Module):
        def forward(self, x):
            return torch.cumprod(x.flip(1), 1), *torch.cummax(x, 1), torch.cummin(x, -1)[1]

    size = torch.export.Dim("size", max=most)
    program = torch.export.export(Running(), (torch.randn(2, 6),), dynamic_shapes=({1: size},))
    model = import_model(program, shapes={"x": (2, Span(1, 40))})
    net = load(build_model(optimize_model(model)).export(tmp_path / "running.so"))
    for extent in (1, 2, 7, 8, 33, 40):
        x = torch.randn(2, extent).round(decimals=1)
        for found, wanted in zip(net(x.numpy()), Running()(x), strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-6)
