"""Means, variances and truths of few values or none, against PyTorch's own."""

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.decompositions import decomposed
from tests.selection import thorough


class Spread(torch.nn.Module):
    """One function of ``torch``, with its arguments."""

    def __init__(self, name, *arguments, **options):
        super().__init__()
        self.name, self.arguments, self.options = name, arguments, options

    def forward(self, x):
        found = getattr(torch, self.name)(x, *self.arguments, **self.options)
        return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize(
    ("shape", "arguments", "options"),
    [
        ((0,), (), {}),
        *thorough([((0,), (False,), {})]),
        ((0, 3), (0,), {}),
        *thorough([((0, 3), (0, False, True), {})]),
        ((1,), (), {}),
        *thorough([((3, 1), (1,), {"correction": 2})]),
        ((3, 3), (1,), {"correction": 5, "keepdim": True}),
    ],
)
def test_few_values(name, shape, arguments, options):
    model, x = Spread(name, *arguments, **options), torch.randn(shape)
    program = decomposed(torch.export.export(model, (x,)))
    for ours, truth in zip(program.module()(x), model(x), strict=True):
        torch.testing.assert_close(ours, truth, equal_nan=True)
    assert not any("var" in str(n.target) or "std" in str(n.target) for n in program.graph.nodes)


@pytest.mark.thorough
def test_mean_of_none():
    for arguments in ((), (0,), ((0, 1), True)):
        model, x = Spread("mean", *arguments), torch.zeros(0, 3)
        program = decomposed(torch.export.export(model, (x,)))
        torch.testing.assert_close(program.module()(x)[0], model(x)[0], equal_nan=True)


@pytest.mark.thorough
def test_any_of_none():
    for arguments in ((), (0,), ((0, 1), True)):
        model, x = Spread("any", *arguments), torch.zeros(0, 3)
        built = build_model(optimize_model(import_model(torch.export.export(model, (x,))), "cpu"))
        torch.testing.assert_close(torch.from_numpy(built.run({"x": x.numpy()})[0]), model(x)[0])


def test_variance_of_one_value_is_built():
    model, x = Spread("std_mean", 1), torch.randn(3, 1)
    built = build_model(optimize_model(import_model(torch.export.export(model, (x,))), "cpu"))
    for ours, truth in zip(built.run({"x": x.numpy()}), model(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth, equal_nan=True)


def test_enough_values_keep_their_operators():
    program = torch.export.export(Spread("var_mean", 1), (torch.randn(3, 2),))
    assert decomposed(program) is program
