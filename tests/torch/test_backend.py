"""The backend of ``torch.compile``: numbers on fresh inputs, parameters that change, sizes that are open."""

import copy
import threading
import warnings

import pytest
import torch

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.host.native import CACHE_VARIABLE
from hetero_tvm.torch.backend import NAME, hetero_tvm, register
from hetero_tvm.torch.refusing import FallbackWarning
from tests.selection import thorough

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32 sums of some dozen terms in another order


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, cache, events=None, **options):
    options = {"cache": cache, "check": False, **options}
    if events is not None:
        options["on_event"] = events.append
    dynamic = options.pop("dynamic", None)
    return torch.compile(function, backend=hetero_tvm, options=options, dynamic=dynamic)


def perceptron():
    layers = torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.LayerNorm(12), torch.nn.Linear(12, 3)
    return torch.nn.Sequential(*layers)


def events_of(events):
    return [event["event"] for event in events]


@pytest.mark.thorough
def test_threads_train_a_graph_of_open_sizes(cache):
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Tanh())
    net, faults = compiled(model, cache), []

    def train(size):
        x = torch.randn(size, 8)
        try:
            for _ in range(3):
                given, wanted = (x.clone().requires_grad_() for _ in range(2))
                net(given).square().sum().backward()
                model(wanted).square().sum().backward()
                torch.testing.assert_close(given.grad, wanted.grad, **TOLERANCE)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=train, args=(2 + place % 2,)) for place in range(6)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert not faults


@pytest.mark.thorough
def test_parameters_are_packed_until_they_change_and_never_stale(cache):
    model, events = perceptron().eval(), []
    net = compiled(model, cache, events)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 8)
            torch.testing.assert_close(net(x), model(x), **TOLERANCE)
            optimizer.step()
    assert events_of(events) == ["compiled", "compiled"]
    assert [event["inputs"] for event in events] == [1, 7] and events[0]["bound"] == 6
    with torch.no_grad():  # another process would find the same
        torch._dynamo.reset()
        again = []
        x = torch.randn(5, 8)
        options = {"parameters": "inputs"}
        torch.testing.assert_close(compiled(model, cache, again, **options)(x), model(x), **TOLERANCE)
    assert events_of(again) == ["cached"]


@pytest.mark.thorough
def test_views_and_changes_of_arguments_are_those_of_pytorch(cache):
    def function(x, state):
        state.add_(x.sum(0))
        return x.view(-1), torch.tanh(x) * state, state, 3

    x, state = torch.randn(3, 4), torch.ones(4)
    mine = state.clone()
    expected, found = function(x, state), compiled(function, cache)(x, mine)
    for want, have in zip(expected[:3], found[:3], strict=True):
        torch.testing.assert_close(have, want, **TOLERANCE)
    torch.testing.assert_close(mine, state, **TOLERANCE)
    assert found[0].data_ptr() == x.data_ptr() and found[2] is mine and found[3] == 3


@pytest.mark.thorough
def test_training_follows_eager_step_by_step(cache):
    events = []
    model = perceptron()
    twin = copy.deepcopy(model)
    net = compiled(model, cache, events)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    for _ in range(2):
        x, target = torch.randn(5, 8), torch.randint(0, 3, (5,))
        for run, optimizer in zip((net, twin), optimizers, strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(run(x), target).backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
        for optimizer in optimizers:
            optimizer.step()
    assert events_of(events) == ["partition", "compiled", "compiled"]
    assert events[0]["kept_bytes"] < events[0]["kept_bytes_without_recomputation"]


@pytest.mark.thorough
@pytest.mark.parametrize("activation", ["SiLU", "Mish"])
def test_gradients_of_compound_activations_are_compiled(cache, activation):
    events = []
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), getattr(torch.nn, activation)(), torch.nn.Linear(8, 4))
    twin, x = copy.deepcopy(model), torch.randn(5, 8)
    for one in (compiled(model, cache, events), twin):
        (one(x) ** 2).sum().backward()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert events_of(events) == ["partition", "compiled", "compiled"]


@pytest.mark.thorough
@pytest.mark.parametrize("size", [3, 1 << 18])
def test_results_that_are_constants_may_be_changed(cache, size):
    """``zeros_like`` takes an input, whose values do not count."""

    def function(x, choice):
        wide = torch.zeros_like(x), x + 1, torch.arange(size) + 0 * x.shape[0]
        return *wide, torch.cond(choice, lambda x: x * 2, lambda x: torch.ones_like(x), (x,))

    net = compiled(function, cache)
    x = torch.randn(size)
    with torch.no_grad():
        for choice in (True, False, False):
            for found, true in zip(
                net(x, torch.tensor(choice)), function(x, torch.tensor(choice)), strict=True
            ):
                torch.testing.assert_close(found, true)
                found.add_(7)  # as its owner may


@pytest.mark.thorough
def test_constants_of_a_function_that_is_trained(cache):
    def loss(x):
        return torch.nn.functional.cross_entropy(x, torch.tensor([1, 2]), torch.tensor([0.5, 1.0, 2.0]))

    events, ends = [], [torch.randn(2, 3, requires_grad=True)]
    ends.append(ends[0].detach().clone().requires_grad_())
    for x, function in zip(ends, (compiled(loss, cache, events), loss), strict=True):
        function(x).backward()
    torch.testing.assert_close(ends[0].grad, ends[1].grad, **TOLERANCE)
    assert events_of(events) == ["partition", "compiled", "compiled"]


@pytest.mark.exhaustive
def test_open_sizes_are_compiled_set_by_set(cache):
    model, events = perceptron().eval(), []
    net = compiled(model, cache, events, dynamic=True)
    with torch.no_grad():
        for size in (5, 7, 5, 1, 7):
            x = torch.randn(size, 8)
            torch.testing.assert_close(net(x), model(x), **TOLERANCE)
    assert events_of(events) == ["compiled"] * 3


@pytest.mark.thorough
def test_training_goes_on_with_batches_of_another_size(cache):
    ours, theirs = (torch.nn.Sequential(torch.nn.BatchNorm1d(8), perceptron()) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    events = []
    net = compiled(ours, cache, events, refused="raise")
    for size in (6, 3, 4, 3):  # from the second on Dynamo leaves the size open
        x = torch.randn(size, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        net(x).square().mean().backward()
        theirs(y).square().mean().backward()
        torch.testing.assert_close(x.grad, y.grad, **TOLERANCE)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, **TOLERANCE)
    assert events_of(events).count("compiled") == 6  # forward and backward of three sizes


@pytest.mark.exhaustive
def test_operators_without_translation_run_in_pytorch_between_compiled_parts(cache):
    def function(x, y):
        x = torch.tanh(x @ y) + x.sum()
        return torch.special.bessel_j0(x) @ y.relu() + torch.sigmoid(x)

    events = []
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    with pytest.warns(FallbackWarning, match="bessel_j0"):
        found = compiled(function, cache, events)(x, y)
    torch.testing.assert_close(found, function(x, y), **TOLERANCE)
    assert events_of(events).count("compiled") == 2
    torch._dynamo.reset()
    with pytest.raises(Exception, match="bessel_j0") as caught:
        compiled(function, cache, refused="raise")(x, y)
    causes = [caught.value, caught.value.__cause__, getattr(caught.value, "inner_exception", None)]
    assert any(isinstance(cause, UnsupportedOperatorError) for cause in causes)


@pytest.mark.exhaustive
def test_random_numbers_stay_random(cache):
    dropout = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        net = compiled(dropout.train(), cache)
        x = torch.randn(4, 64)
        first, second = net(x), net(x)
    assert not torch.equal(first, second)
    assert torch.isfinite(first).all()


@pytest.mark.exhaustive
def test_misaligned_strided_and_repeated_arguments(cache):
    def function(x):
        return torch.tanh(x) * 2

    net = compiled(function, cache)
    memory = torch.randn(100)
    for x in (memory[1:13].view(3, 4), memory[:48].view(4, 3, 4)[:, 1].t()[:3, :4], memory[:4].expand(3, 4)):
        torch.testing.assert_close(net(x), function(x), **TOLERANCE)


def test_the_backend_has_its_name():
    register()
    assert NAME in torch._dynamo.list_backends(exclude_tags=())
    assert CACHE_VARIABLE == "HETERO_TVM_CACHE"


@pytest.mark.parametrize("dynamic", [*thorough([False]), True])
def test_results_lie_in_memory_as_pytorchs_do(cache, dynamic):
    def turned(x):
        doubled = x.t() * 2
        torch._dynamo.graph_break()
        return doubled.t().view(-1)

    net = compiled(turned, cache, dynamic=dynamic)
    x = torch.randn(3, 4)
    torch.testing.assert_close(net(x), turned(x))

    convolution = torch.nn.Conv2d(3, 4, 3).eval().to(memory_format=torch.channels_last)
    net = compiled(convolution, cache, dynamic=dynamic)
    with torch.no_grad():
        x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
        assert net(x).stride() == convolution(x).stride()
        torch.testing.assert_close(net(x), convolution(x), **TOLERANCE)


@pytest.mark.parametrize("changed", [False, *thorough([True])], ids=["pure", "through AOTAutograd"])
def test_results_that_share_memory_in_pytorch_share_it(cache, changed):
    def function(x, state):
        if changed:
            state.add_(1)
        y = (x * 2).t()
        alone = x + 1
        return y[0], y, y.t().view(-1), alone, y[:, ::2], y[0]

    x, state = torch.randn(3, 4), torch.ones(1)
    net = compiled(function, cache)
    with torch.no_grad():
        expected, found = function(x, state), net(x, state)
        found[1].mul_(3), expected[1].mul_(3)
        found[0].sub_(1), expected[0].sub_(1)
    for want, have in zip(expected, found, strict=True):
        torch.testing.assert_close(have, want, **TOLERANCE)
        assert have.stride() == want.stride()


@pytest.mark.thorough
def test_results_of_training_lie_in_memory_as_pytorchs_do(cache):
    def turned(x):
        doubled = x.t() * 2
        return doubled, doubled[0]

    x = torch.randn(3, 4, requires_grad=True)
    first, row = compiled(turned, cache)(x)
    assert first.stride() == turned(x)[0].stride()
    torch.testing.assert_close(row, turned(x)[1])
    (first.sum() + row.square().sum()).backward()
    ours, x.grad = x.grad, None
    first, row = turned(x)
    (first.sum() + row.square().sum()).backward()
    torch.testing.assert_close(ours, x.grad)


@pytest.mark.thorough
def test_results_of_divided_graphs_lie_in_memory_as_pytorchs_do(cache):
    def divided(x):
        return torch.nn.functional.dropout(x, 1e-9, True).exp().t() * 2

    with pytest.warns(FallbackWarning):
        found = compiled(divided, cache)(x := torch.randn(3, 4))
    assert found.stride() == (1, 4)
    torch.testing.assert_close(found, divided(x), **TOLERANCE)


@pytest.mark.thorough
def test_divided_graphs_take_and_give_tokens(cache):
    """The test of a solution is an effect, which AOTAutograd orders by tokens: None in a call."""

    def divided(x):
        return torch.linalg.svdvals(x), torch.linalg.solve(x, x * 2), x.triu(1) * 2 + 1

    x = torch.randn(2, 3, 3)
    with pytest.warns(FallbackWarning, match="_linalg_svd"), torch.no_grad():
        found = compiled(divided, cache)(x)
    for one, other in zip(found, divided(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


NORMALIZATIONS = {
    "layer": lambda: [torch.nn.Linear(16, 24), torch.nn.LayerNorm(24)],
    "batch": lambda: [
        torch.nn.Unflatten(1, (1, 4, 4)),
        torch.nn.Conv2d(1, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4),
    ],
    "group": lambda: [torch.nn.Unflatten(1, (1, 4, 4)), torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4)],
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_normalizations_are_trained_in_bfloat16(cache, kind):
    model = torch.nn.Sequential(*NORMALIZATIONS[kind](), torch.nn.Tanh())
    exact = copy.deepcopy(model)

    def loss(net, x):
        with torch.autocast("cpu", torch.bfloat16):
            return net(x).float().square().mean()

    x = torch.randn(8, 16)
    compiled(loss, cache, refused="raise", check=True)(model, x).backward()
    exact(x).square().mean().backward()
    for ours, wanted in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad - wanted.grad).norm() <= 0.02 * wanted.grad.norm() + 1e-5  # 8 bits of digits
