import copy

import pytest

torch = pytest.importorskip("torch")

from hetero_tvm.torch.attributes import as_arguments, changed_attributes, values


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))
        self.register_buffer("shift", torch.full((2,), 3.0))

    def forward(self, x):
        self.calls.add_(x)
        return self.shift * x + self.calls


def test_only_what_is_changed_becomes_an_argument():
    gm, x = torch.fx.symbolic_trace(Counting()), torch.ones(2)
    assert changed_attributes(gm, [x]) == ["calls"]
    whole = as_arguments(gm, ["calls"])
    assert len(whole.graph.find_nodes(op="placeholder")) == 2
    held = torch.tensor([1.0, 2.0])
    assert whole(x, held).tolist() == [5.0, 6.0] and held.tolist() == [2.0, 3.0]
    assert values(gm, ["calls"])[0] is gm.calls and gm.calls.tolist() == [0, 0]


def test_a_graph_without_arguments_or_without_changes():
    graph = torch.fx.Graph()
    graph.output(graph.call_method("add", (graph.get_attr("calls"), 1)))
    gm = torch.fx.GraphModule({"calls": torch.zeros(2)}, graph)
    assert changed_attributes(gm, []) == []
    assert as_arguments(gm, ["calls"])(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.thorough
def test_parameters_that_dynamo_gives_as_attributes_are_never_stale(tmp_path):
    """They are packed until they change, and then read; Inductor's setting holds for all of a process."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, events = torch.nn.Linear(3, 2).eval(), []
    options = {"cache": str(tmp_path), "check": False, "on_event": events.append}
    compiled, x = torch.compile(model, backend="hetero_tvm", options=options), torch.randn(4, 3)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
            model.weight.add_(1)
            model.bias = torch.nn.Parameter(model.bias * 2)
    assert events[0]["bound"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_step_of_an_optimizer(momentum, tmp_path):
    """Dynamo gives an optimizer's parameters as attributes of the graph: changes to them must not be lost."""
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=momentum) for m in (ours, theirs)]
    events = []
    options = {"cache": str(tmp_path), "on_event": events.append}
    step = torch.compile(lambda optimizer: optimizer.step(), backend="hetero_tvm", options=options)
    for _ in range(3):
        x = torch.randn(5, 8)
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().mean().backward()
        step(optimizers[0])
        optimizers[1].step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert "compiled" in {event["event"] for event in events}
