"""Frozen parameters: every way of changing them that PyTorch counts is seen."""

import pytest
import torch

from hetero_tvm.torch.parameters import FrozenParameters

CHANGES = {
    "in place": lambda p: p.add_(1),
    "an element": lambda p: p.__setitem__((0, 0), 5.0),
    "a copy": lambda p: p.copy_(torch.zeros_like(p)),
    "through a detached view": lambda p: p.detach()[1].zero_(),
    "other memory": lambda p: setattr(p, "data", torch.zeros_like(p)),
    "a step of an optimizer": lambda p: _step(p),
}


def _step(parameter):
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter], 0.1).step()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    parameters = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(3)]
    frozen = FrozenParameters(dict(zip((0, 2, 3), parameters, strict=True)))
    given = [parameters[0], torch.ones(1), *parameters[1:]]
    assert frozen.unchanged(given)
    with torch.no_grad():
        CHANGES[change](parameters[1])
    assert not frozen.unchanged(given)


def test_another_tensor_of_the_same_values_is_a_change():
    parameter = torch.nn.Parameter(torch.ones(2))
    frozen = FrozenParameters({0: parameter})
    assert frozen.unchanged([parameter])
    assert not frozen.unchanged([torch.nn.Parameter(torch.ones(2))])


def test_nothing_frozen_never_changes():
    frozen = FrozenParameters({})
    assert not frozen and frozen.unchanged([])
