"""Effects of graphs on their arguments."""

import pytest
import torch

from hetero_tvm.errors import ModelError
from hetero_tvm.torch.examine import View, examine


def traced(function):
    return torch.fx.symbolic_trace(function)


X, Y = torch.ones(2, 3), torch.ones(2, 3)


def test_a_pure_graph():
    found = examine(traced(lambda x, y: (x + y, x * 2)), [X, Y])
    assert found.is_pure and found.outputs == (("result", 0), ("result", 1))


def test_arguments_numbers_and_one_tensor_twice():
    def outputs(x, y):
        s = x + y
        return s, x, 3, None, s

    found = examine(traced(outputs), [X, Y])
    expected = (("result", 0), ("argument", 0), ("value", 3), ("value", None), ("result", 0))
    assert found.outputs == expected and found.results == (0,) and found.is_pure


@pytest.mark.parametrize(
    "function",
    [lambda x, y: (x.view(-1), y + 1), lambda x, y: ((z := x + y), z.view(6))],
    ids=["input", "output"],
)
def test_views_share_memory(function):
    assert examine(traced(function), [X, Y]).shares_memory


def test_views_of_a_result_are_found_as_such():
    def function(x, y):
        z = (x + y).t()
        return z[1:], z, 3, z.view(torch.int32), x * 2

    found = examine(traced(function), [X, Y], views=True)
    view = View(0, (2, 2), (1, 3), 1)
    assert found.outputs == (("view", view), ("result", 0), ("value", 3), ("result", 1), ("result", 2))
    assert found.results == (1, 3, 4) and found.orders == ((1, 0), (1, 0), None) and not found.is_pure


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: ((z := x + y)[:, :2], z[:, 1:]),
        lambda x, y: (x, x[0]),
        lambda x, y: ((z := torch.complex(x, y)), z[0]),
    ],
    ids=["none covers all", "argument", "complex"],
)
def test_other_views_stay_results(function):
    found = examine(traced(function), [X, Y], views=True)
    assert found.shares_memory and "view" not in dict(found.outputs)


def test_changes_in_place_are_found_by_argument():
    found = examine(traced(lambda x, y: (y.add_(1), x + 1)), [X, Y])
    assert found.changed == (1,) and not found.is_pure


def test_changes_of_lists_of_tensors_are_found():
    """Steps of optimizers, which leave the versions of fake tensors as they were."""
    found = examine(traced(lambda x, y: (torch._foreach_lerp_([y], [x], 0.5), x + 1)[1]), [X, Y])
    assert found.changed == (1,) and not found.is_pure


def test_sizes_that_depend_on_values_are_refused():
    with pytest.raises(ModelError, match="depend on values"):
        examine(traced(lambda x, y: x[x > 0].tolist()), [X, Y])
