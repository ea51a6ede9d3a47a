"""Antialiased resizes against PyTorch's own."""

import pytest
import torch
from torch.nn import functional

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decomposed
from tests.selection import thorough


class Resized(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return functional.interpolate(x, antialias=True, **self.options)


CASES = [
    {"scale_factor": 0.55},
    {"scale_factor": 0.55, "align_corners": True},
    {"scale_factor": (2.33, 0.12)},
    {"scale_factor": (1.7, 0.4), "align_corners": True},
    {"size": (1, 7), "align_corners": True},
]


@pytest.mark.parametrize("mode", ["bilinear", *thorough(["bicubic"])])
@pytest.mark.parametrize("options", [*CASES[:1], *thorough(CASES[1:])])
def test_places(mode, options):
    model, x = Resized(mode=mode, **options), torch.randn(2, 3, 10, 20)
    program = torch.export.export(model, (x,))
    assert decomposed(program) is not program
    torch.testing.assert_close(decomposed(program).module()(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_built():
    model, x = Resized(mode="bicubic", scale_factor=0.55), torch.randn(2, 3, 10, 20)
    built = build_model(optimize_model(import_model(torch.export.export(model, (x,))), "cpu"))
    found = torch.from_numpy(built.run({"x": x.numpy()})[0])
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_sizes_keep_the_operator():
    program = torch.export.export(Resized(mode="bilinear", size=(7, 13)), (torch.randn(1, 3, 10, 20),))
    assert decomposed(program) is program
