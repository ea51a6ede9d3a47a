"""Copies of graphs: with fixed values, or with fewer results."""

import torch

from hetero_tvm.torch.rewrites.copies import output_arguments, returning, scalar_placeholders, with_values


def traced(function):
    return torch.fx.symbolic_trace(function)


X, Y = torch.ones(2, 3), torch.ones(2, 3)


def test_numbers_that_arrive_as_tensors_are_fixed():
    gm = traced(lambda x, eps: x + eps.item())
    assert scalar_placeholders(gm) == (1,)
    fixed = with_values(gm, {1: 0.5})
    assert torch.equal(fixed(X, None), X + 0.5)
    assert torch.equal(gm(X, torch.tensor(2.0)), X + 2)  # the graph itself stays as it is


def test_a_graph_that_returns_less():
    gm = traced(lambda x, y: (x + y, torch.exp(x)))
    fewer = returning(gm, [1])
    assert len(output_arguments(fewer.graph)) == 1 and torch.equal(fewer(X, Y)[0], X.exp())
    assert torch.equal(gm(X, Y)[0], X + Y)


def test_changes_in_place_that_nobody_reads_stay():
    def function(x, y):
        z = x * 2
        z.add_(y)
        z.mul_(y + 1)
        return z, x

    assert torch.equal(returning(traced(function), [0])(X, Y)[0], function(X, Y)[0])
