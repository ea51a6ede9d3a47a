"""Floats that change from call to call, in tensors."""

import pytest
import torch

from hetero_tvm.torch import specializing
from hetero_tvm.torch.backend import hetero_tvm
from hetero_tvm.torch.rewrites.copies import scalar_placeholders
from hetero_tvm.torch.rewrites.numbers import with_open_numbers
from tests.selection import thorough


def graph_of(function, *calls):
    """The last graph that Dynamo makes of a function, and its arguments."""
    graphs = []

    def keep(gm, arguments):
        graphs.append((gm, [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]))
        return gm.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=keep)
    for call in calls:
        compiled(*call)
    return graphs[-1]


def same(gm, opened, arguments):
    """Whether two graphs give the same results and leave their arguments the same."""
    results = []
    for graph in (gm, opened):
        given = [a.clone() for a in arguments]
        results.append((graph(*given), given))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, rate: x * rate + 1,
        lambda x, rate: x - (1 - 0.9**rate) / (2 * -rate),
        *thorough(
            [
                lambda x, rate: torch.add(x, x.exp(), alpha=-rate).sub_(x, alpha=rate),
                lambda x, rate: x.clone().addcdiv_(x.cos(), x.exp(), value=-rate).addcmul(x, x, value=rate),
            ]
        ),
        lambda x, rate: x.double() * rate + x.half() * rate,
        lambda x, rate: torch.true_divide(x, rate).mul_(rate),
        lambda x, rate: torch._foreach_add([x, x.cos()], [x, x], alpha=-rate),
        *thorough(
            [
                lambda x, rate: torch._foreach_div(
                    torch._foreach_sub([x, x.cos()], rate)[:], [1 + rate, rate]
                ),
                lambda x, rate: torch._foreach_addcdiv([x, x.cos()], [x, x], [x.exp(), x.exp()], value=rate),
            ]
        ),
        lambda x, rate: torch._foreach_addcmul([x, x], [x, x], [x, x.exp()], [rate, -rate]),
    ],
    ids=[
        *("scaled", "between numbers", "alpha", "value", "types", "functions"),
        *("alpha of a list", "lists and numbers", "value of a list", "values of a list"),
    ],
)
def test_arithmetic_takes_tensors(function):
    gm, arguments = graph_of(function, (X, 0.5), (X, 0.25), (X, 0.125))
    assert scalar_placeholders(gm)
    opened = with_open_numbers(gm)
    assert not scalar_placeholders(opened)
    same(gm, opened, arguments)


def test_numbers_that_meet():
    def step(x, rate, decay):
        return x.mul(1 - rate * decay).add_(x, alpha=rate) * decay

    gm, arguments = graph_of(step, (X, 0.5, 0.1), (X, 0.25, 0.2), (X, 0.125, 0.3))
    assert len(scalar_placeholders(gm)) == 2
    opened = with_open_numbers(gm)
    assert not scalar_placeholders(opened)
    same(gm, opened, arguments)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, rate: x.clamp(max=rate) * rate,
        lambda x, rate: (x > 0).long() * rate,
        lambda x, rate: torch.full((3,), rate) + x.sum(),
        lambda x, rate: (x + 1, rate * 2),
        lambda x, rate: torch._foreach_mul([x, x], [rate, 2.0]),
        lambda x, rate: torch._foreach_mul([x, x.long()], rate),
    ],
    ids=["bound", "integers", "filled", "result", "some of a list", "a list of integers"],
)
def test_floats_that_stay_numbers(function):
    gm, arguments = graph_of(function, (X, 0.5), (X, 0.25), (X, 0.125))
    opened = with_open_numbers(gm)
    assert scalar_placeholders(opened) == scalar_placeholders(gm)
    assert opened is gm
    del arguments


@pytest.mark.parametrize("foreach", [False, True], ids=["one by one", "all at once"])
@pytest.mark.parametrize(
    "optimizer",
    [
        *thorough([torch.optim.SGD]),
        torch.optim.Adam,
        *thorough([torch.optim.AdamW, torch.optim.RMSprop]),
        torch.optim.Adagrad,
    ],
)
def test_an_optimizer_whose_rate_follows_a_schedule(optimizer, foreach):
    """From the second rate on one graph serves all: none is read as a number."""
    weights = [torch.nn.Parameter(X.clone()), torch.nn.Parameter(X[0].clone())]
    made = optimizer(weights, lr=0.1, foreach=foreach)
    schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
    graphs = []

    def keep(gm, arguments):
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    step = torch.compile(made.step, backend=keep)
    for _ in range(4):
        for weight in weights:
            weight.grad = weight.detach().cos()
        step()
        schedule.step()
    assert not scalar_placeholders(with_open_numbers(graphs[-1]))


@pytest.mark.thorough
def test_a_compiled_step_serves_all_rates(tmp_path, monkeypatch):
    """Of the first rate, and of all others: a library each, and PyTorch's numbers."""
    libraries = []
    made = specializing.Specialized._compiled
    monkeypatch.setattr(
        specializing.Specialized,
        "_compiled",
        lambda self, arguments: libraries.append(1) or made(self, arguments),
    )
    torch._dynamo.reset()
    options = {"cache": tmp_path, "refused": "raise"}
    ends = []
    for compiled in (False, True):
        weights = [torch.nn.Parameter(X.clone()), torch.nn.Parameter(X[0].clone())]
        optimizer = torch.optim.AdamW(weights, lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        step = (
            torch.compile(optimizer.step, backend=hetero_tvm, options=options) if compiled else optimizer.step
        )
        for _ in range(5):
            for weight in weights:
                weight.grad = weight.detach().cos()
            step()
            schedule.step()
        ends.append([weight.detach() for weight in weights])
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-5)  # quotients of small numbers
    assert len(libraries) == 2
