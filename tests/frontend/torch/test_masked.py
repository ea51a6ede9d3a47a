"""Assignments to what a mask selects of values made from it, against PyTorch."""

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.masked import with_choices
from tests.selection import thorough


class Tails(torch.nn.Module):
    """Two masks of one row each, of which the second is written twice, and sums with what is there."""

    def forward(self, x, y):
        inside = x.abs() < 1
        result = torch.zeros_like(x)
        result[inside] = x[inside] * 2 + y[inside].exp()
        result[~inside] = y[~inside]
        return result


class Rows(torch.nn.Module):
    """Masks over leading axes, and behind a first one; choices by comparisons."""

    def forward(self, x, y):
        rows = x[..., 0] > 0
        result = y.clone()
        result[rows] += torch.where(x[rows] > 0, x[rows], y[rows] / x[rows].abs())
        columns = x[0, :, 0] > 0
        result[:, columns] = x[:, columns].tanh()
        return result


class Moved(torch.nn.Module):
    """A selection that is read before its tensor changes in place."""

    def forward(self, x, y):
        mask = x > 0
        before = x[mask]
        z = x + y
        selected = z[mask]
        z.mul_(2)
        z[mask] = selected - before
        return z


@pytest.mark.parametrize("kind", [*thorough([Tails, Rows]), Moved])
def test_programs(kind):
    torch.manual_seed(0)
    given = torch.randn(2, 6, 3), torch.randn(2, 6, 3)
    program = torch.export.export(kind(), given)
    changed = with_choices(torch, program)
    assert not any("index_put" in str(node.target) for node in changed.graph.nodes)
    torch.testing.assert_close(changed.module()(*given), kind()(*given))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Tails, Rows, Moved])
def test_built(kind):
    given = torch.randn(2, 6, 3), torch.randn(2, 6, 3)
    built = build_model(optimize_model(import_model(torch.export.export(kind(), given))), use_shipped=False)
    ours = built.run({name: one.numpy() for name, one in zip("xy", given, strict=True)})[0]
    torch.testing.assert_close(torch.from_numpy(ours), kind()(*given))


def test_other_programs_stay_as_they_are():
    class Filled(torch.nn.Module):
        def forward(self, x):
            y = x.clone()
            y[x > 0] = 1.0
            return y

    program = torch.export.export(Filled(), (torch.zeros(2),))
    assert with_choices(torch, program) is program
