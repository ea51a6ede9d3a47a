"""Views of complex numbers in exported programs."""

import numpy as np
import pytest
import torch

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ModelError


class Rotated(torch.nn.Module):
    """Rotary embedding as products of complex numbers, as Llama's reference code and Llama 4 write it."""

    def forward(self, x, angles):
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        whole = torch.view_as_real(pairs * turns[:, :, None, :]).flatten(3)
        first = torch.view_as_real(pairs[:, 1:4] * turns.unsqueeze(-2)[:, 0].unsqueeze(1).expand(2, 3, 1, 4))
        return whole, first


@pytest.mark.thorough
def test_rotary_embedding_of_complex_numbers():
    torch.manual_seed(0)
    given = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 4)
    program = torch.export.export(Rotated(), given, strict=False)
    built = build_model(optimize_model(import_model(program)), use_shipped=False)
    found = built.run({"x": given[0].numpy(), "angles": given[1].numpy()})
    for ours, wanted in zip(found, Rotated()(*given), strict=True):
        np.testing.assert_allclose(ours, wanted.numpy(), atol=1e-6)  # float32 products of numbers below 4


class Algebra(torch.nn.Module):
    """Products, quotients, functions and assignments that state space and Fourier models use."""

    def forward(self, x, y):
        z, w = torch.complex(x, y), torch.complex(y, x)
        kept = torch.zeros(4, 8, dtype=torch.cfloat)
        kept[:, 1:7] = z[:, :6]
        decay = torch.exp((-x.exp() + 1j * y)[..., None] * torch.arange(5))
        parts = [
            z / w, 2 / z, z + 2, z - (1 + 2j), 1 - w, torch.add(z, w, alpha=3), z @ w.mH,
            z @ x.T.to(torch.cfloat),
            torch.einsum("bi,bij->bj", z, decay), torch.where(x > 0, z, 0), torch.cat([z, w.conj()], -1).T,
            kept, z.log(), w.sqrt(), z**-3, w**0.5, z.sgn(), torch.nn.functional.pad(z, (1, 2)), z.cumsum(1),
            z.masked_fill(x > 0, 2.0), z[[0, 2], 3:], z.chunk(2, 1)[1],
            kept.index_add(0, torch.tensor([1, 1, 2, 0]), w),
        ]  # fmt: skip
        same = z == w.conj().conj()
        return *(torch.view_as_real(part) for part in parts), same, z.abs(), w.angle(), z.mean(0).imag


class Filter(torch.nn.Module):
    """Products in the domain of frequencies, with weights of complex numbers."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 3, 4, 3, dtype=torch.cfloat))

    def forward(self, x):
        waves = torch.fft.rfft2(x)
        kept = torch.einsum("bixy,ioxy->boxy", waves[:, :, :4, :3], self.weight)
        return torch.fft.irfft2(kept, s=(4, 5)), torch.fft.ifft(waves, norm="ortho").abs()


def compared(model, given, tolerance):
    program = torch.export.export(model, given, strict=False)
    names = program.graph_signature.user_inputs
    built = build_model(optimize_model(import_model(program)), use_shipped=False)
    found = built.run({name: value.numpy() for name, value in zip(names, given, strict=True)})
    for ours, wanted in zip(found, model(*given), strict=True):
        np.testing.assert_allclose(ours, wanted.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.thorough
def test_arithmetic_of_complex_numbers():
    torch.manual_seed(0)
    compared(Algebra(), (torch.randn(4, 8), torch.randn(4, 8)), 1e-4)  # cubes of quotients lose two digits


@pytest.mark.thorough
def test_filters_of_frequencies():
    torch.manual_seed(0)
    compared(Filter(), (torch.randn(2, 2, 6, 8),), 1e-5)


class Paired(torch.nn.Module):
    """Inner products and spectra whose conjugates PyTorch keeps as flags of tensors."""

    def forward(self, x, y):
        z, w = torch.complex(x, y), torch.complex(y, 2 * x)
        products = torch.vdot(z[0], w[1]), torch.inner(z, w.conj()), torch.inner(z, w[0])
        spectrum = torch.fft.ihfft(x, norm="ortho")
        widened = torch.ops.aten.slice_backward.default(z, [4, 10], 1, 1, 9, 1)
        parts = (*products, spectrum.resolve_conj(), widened)
        return *(torch.view_as_real(part) for part in parts), torch.fft.hfft(spectrum, n=8)


@pytest.mark.thorough
def test_products_and_spectra_with_conjugates():
    torch.manual_seed(0)
    compared(Paired(), (torch.randn(4, 8), torch.randn(4, 8)), 1e-4)


class Ends(torch.nn.Module):
    def forward(self, z):
        return z * 2


def test_complex_ends_are_refused_by_name():
    program = torch.export.export(Ends(), (torch.randn(2, 3, dtype=torch.cfloat),), strict=False)
    with pytest.raises(ModelError, match=r"input 'z' is complex(.|\n)*result 'mul' is complex"):
        import_model(program)
