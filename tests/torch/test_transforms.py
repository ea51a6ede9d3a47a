"""Transformed functions (``torch.func``), branches, and the stack of levels."""

import pytest
import torch

import hetero_tvm.torch  # noqa: F401
from hetero_tvm.torch.transforms import levels_closed
from tests.selection import named


def cubes(x):
    return (x**3).sum()


def branches(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * 2, (x,))


FUNCTIONS = {
    "grad": torch.func.grad(cubes),
    "vmap": torch.vmap(lambda x: x * x.sum()),
    "gradients of rows": torch.vmap(torch.func.grad(cubes)),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
    "cond": branches,
}


@pytest.mark.parametrize("name", named(list(FUNCTIONS), {"gradients of rows", "jvp", "cond"}))
def test_numbers_are_those_of_pytorch(name, tmp_path):
    torch._dynamo.reset()
    options = {"cache": str(tmp_path), "refused": "raise"}
    compiled = torch.compile(FUNCTIONS[name], backend="hetero_tvm", options=options)
    x = torch.rand(3, 4)
    for given in (x, -x):
        torch.testing.assert_close(compiled(given), FUNCTIONS[name](given))


def test_levels_that_an_error_leaves_open_are_closed():
    with pytest.raises(ValueError), levels_closed():
        torch._C._functorch._vmap_increment_nesting(3, "error")
        raise ValueError
    assert not torch._C._functorch.get_interpreter_stack()


def test_a_level_of_forward_differentiation_is_closed():
    with pytest.raises(ValueError), levels_closed():
        torch._C._enter_dual_level()
        raise ValueError
    with torch.autograd.forward_ad.dual_level():  # PyTorch refuses a second one
        with levels_closed():
            pass
        assert torch.autograd.forward_ad.make_dual(torch.ones(1), torch.ones(1)).shape == (1,)
