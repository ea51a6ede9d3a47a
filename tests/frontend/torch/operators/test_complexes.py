"""Views of complex numbers in exported programs."""

import numpy as np
import torch

from hetero_tvm.api import build_model, import_model, optimize_model


class Rotated(torch.nn.Module):
    """Rotary embedding as products of complex numbers, as Llama's reference code and Llama 4 write it."""

    def forward(self, x, angles):
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        whole = torch.view_as_real(pairs * turns[:, :, None, :]).flatten(3)
        first = torch.view_as_real(pairs[:, 1:4] * turns.unsqueeze(-2)[:, 0].unsqueeze(1).expand(2, 3, 1, 4))
        return whole, first


def test_rotary_embedding_of_complex_numbers():
    torch.manual_seed(0)
    given = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 4)
    program = torch.export.export(Rotated(), given, strict=False)
    built = build_model(optimize_model(import_model(program)), use_shipped=False)
    found = built.run({"x": given[0].numpy(), "angles": given[1].numpy()})
    for ours, wanted in zip(found, Rotated()(*given), strict=True):
        np.testing.assert_allclose(ours, wanted.numpy(), atol=1e-6)  # float32 products of numbers below 4
