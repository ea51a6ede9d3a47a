"""Sizes by masks and numbers that are constants, against PyTorch."""

import pytest
import torch

from hetero_tvm import build_model, import_model, optimize_model
from hetero_tvm.frontend.torch.fixed_values import with_fixed_values
from tests.selection import thorough

BATCH = torch.export.Dim("batch", min=1, max=8)


class Buffer(torch.nn.Module):
    """A mask that is a buffer: selection, assignment of one value and of computed ones, a number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([1, 0, 1, 1, 0, 0]).bool())
        self.register_buffer("count", torch.tensor(4))

    def forward(self, x):
        y = x.clone()
        y[:, self.mask, 0] = 0.0
        y[:, self.mask, 1] += 3.0
        count = self.count.item()
        torch._check(count >= 0)
        return y, x[:, self.mask], torch.zeros(count, 3) + x[0, 0, 0]


class Triangle(torch.nn.Module):
    """A mask over two axes that operators make: a matrix of its upper triangle."""

    def forward(self, x):
        above = torch.ones(6, 6).triu(1).bool()
        y = torch.zeros(x.shape[0], 6, 6)
        y[:, above] = x.reshape(x.shape[0], -1)[:, :15]
        return x.repeat(1, 1, 2)[:, above], y + y.transpose(1, 2)


class Built(torch.nn.Module):
    """A mask that is filled in place, and from then on changed by what the caller gives."""

    def forward(self, x):
        mask = torch.ones(6, dtype=torch.bool)
        mask[2] = False
        selected = x[:, mask]
        mask[4] = False
        later = x[:, mask]
        mask.logical_and_(x[0, :, 0] > 0)
        return selected, later, torch.where(mask.unsqueeze(-1), x, 0.0)


def _exported(kind):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(2, 6, 3)
    return model, x, torch.export.export(model, (x,), dynamic_shapes=({0: BATCH},))


@pytest.mark.parametrize("kind", [Buffer, *thorough([Triangle, Built])])
def test_programs(kind):
    model, _, program = _exported(kind)
    fixed = with_fixed_values(torch, program)
    assert not any(torch.fx.experimental.symbolic_shapes.free_unbacked_symbols(v) for v in _shapes(fixed))
    for batch in (2, 3):
        given = torch.randn(batch, 6, 3)
        torch.testing.assert_close(fixed.module()(given), model(given))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Buffer, Triangle, Built])
def test_built(kind):
    model, x, program = _exported(kind)
    built = build_model(optimize_model(import_model(program, shapes={"x": [2, 6, 3]})), use_shipped=False)
    for ours, theirs in zip(built.run({"x": x.numpy()}), model(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs)


def _shapes(program):
    values = (node.meta.get("val") for node in program.graph.nodes)
    return [value.shape for value in values if isinstance(value, torch.Tensor)]


def test_what_a_caller_gives_is_no_constant():
    class Given(torch.nn.Module):
        def forward(self, x, mask):
            return x[mask]

    program = torch.export.export(Given(), (torch.zeros(4, 2), torch.ones(4).bool()))
    assert with_fixed_values(torch, program) is program


def test_other_programs_stay_as_they_are():
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))
    assert with_fixed_values(torch, program) is program
