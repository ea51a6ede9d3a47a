"""Programs of float64 keep all digits of Python's numbers, against PyTorch's own."""

import math

import pytest
import torch
from torch.nn import functional

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decomposed, decompositions

X = torch.tensor([-1.7, -0.1, 0.1, 0.123456789012345, 0.9, 2.3], dtype=torch.float64)


class Numbers(torch.nn.Module):
    def forward(self, x):
        tenth = x * 0 + torch.tensor(0.1, dtype=torch.float64)
        square = x[:4].reshape(2, 2)
        return (
            x + 0.1,
            0.1 - x,
            x * 0 + 1e-300,
            x * 0.1,
            x / 0.3,
            1.1**x,
            x.abs() ** 0.1,
            x.clamp(-0.1, 0.1),
            torch.full((2,), 0.1, dtype=torch.float64) + x[:2],
            torch.full_like(x, 0.1),
            torch.fill(x, 0.1),
            tenth == 0.1,
            tenth >= 0.1,
            tenth != 0.1,
            x.masked_fill(x > 0, 0.1),
            torch.where(x > 0, x, 0.1),
            torch.addcmul(x, x, x, value=0.1),
            torch.addmm(square, square, square, beta=0.1, alpha=0.3),
            torch.arange(0, 1, 0.1, dtype=torch.float64) + x[0],
            torch.linspace(0, 0.7, 5, dtype=torch.float64) + x[0],
            functional.leaky_relu(x, 0.1),
            functional.layer_norm(x, (6,), eps=1e-3),
        )


class Singles(torch.nn.Module):
    """The same operators on float32, whose own operators are kept."""

    def forward(self, x):
        return functional.leaky_relu(x, 0.1), functional.gelu(x), functional.layer_norm(x, (6,)), x + 0.1


@pytest.mark.thorough
def test_numbers_of_python_keep_their_digits():
    built = build_model(optimize_model(import_model(torch.export.export(Numbers(), (X,))), "cpu"))
    for ours, truth in zip(built.run({"x": X.numpy()}), Numbers()(X), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth, rtol=1e-13, atol=1e-15)
    assert built.run({"x": X.numpy()})[2].min() == 1e-300


def test_float32_keeps_its_operators():
    program = torch.export.export(Singles(), (X.float(),))
    assert decomposed(program) is program


IMAGE = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(2, 4, 3)
CHANNEL = torch.tensor([0.3, -0.7, 1.1, 2.0], dtype=torch.float64)
CALLS = {
    "elu": (X, 0.3),
    "celu": (X, 0.3),
    "selu": (X,),
    "hardtanh": (X, -0.1, 0.1),
    "softplus": (X, 3.3, 2.1),
    "hardsigmoid": (X,),
    "hardswish": (X,),
    "gelu": (X,),
    "log2": (X.abs(),),
    "log10": (X.abs(),),
    "sinc": (torch.cat([X, torch.zeros(1, dtype=torch.float64)]),),
    "addcdiv": (X, X, X + 3),
    "linalg_vector_norm": (X, 2.3),
    "group_norm": (IMAGE, 2, CHANNEL, CHANNEL, 1e-3, False),
    "instance_norm": (IMAGE, CHANNEL, CHANNEL, None, None, True, 0.1, 1e-3, False),
    "batch_norm": (IMAGE, CHANNEL, CHANNEL, CHANNEL, CHANNEL.abs(), False, 0.1, 1e-3, False),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_formula(name):
    operator = getattr(torch.ops.aten, name).default
    found = decompositions()[operator](*CALLS[name])
    torch.testing.assert_close(found, operator(*CALLS[name]), rtol=1e-13, atol=1e-15)


def test_formulas_with_options():
    table, aten = decompositions(), torch.ops.aten
    found = table[aten.gelu.default](X, approximate="tanh")
    torch.testing.assert_close(found, functional.gelu(X, approximate="tanh"), rtol=1e-13, atol=1e-15)
    rows = X.reshape(2, 3)
    found = table[aten.linalg_vector_norm.default](rows, 2.3, [1], True)
    torch.testing.assert_close(found, rows.norm(2.3, 1, keepdim=True), rtol=1e-13, atol=0)
    lost = torch.full((2, 2), math.nan, dtype=torch.float64)
    square = X[:4].reshape(2, 2)
    found = table[aten.addmm.default](lost, square, square, beta=0, alpha=0.3)
    truth = torch.addmm(lost, square, square, beta=0, alpha=0.3)
    torch.testing.assert_close(found, truth, rtol=1e-13, atol=0)


class Defaults(torch.nn.Module):
    def forward(self, x):
        return x + torch.ones(6) / 3, torch.full((2,), 0.1) + x[:2], torch.linspace(0, 0.7, 5)


def test_new_tensors_have_the_type_that_was_the_default():
    torch.set_default_dtype(torch.float64)
    try:
        program, expected = torch.export.export(Defaults(), (X,)), Defaults()(X)
    finally:
        torch.set_default_dtype(torch.float32)
    found = build_model(optimize_model(import_model(program), "cpu")).run({"x": X.numpy()})
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs, rtol=1e-12, atol=1e-14)
