"""State of programs: what was changed in place comes in and goes out."""

import pytest
import torch
from torch import nn

from hetero_tvm.frontend.torch.importer import import_torch
from hetero_tvm.frontend.torch.run import TorchProgram
from hetero_tvm.frontend.torch.state import State, with_state
from tests.selection import thorough


class Cache(nn.Module):
    """Rows written at a place into a buffer, and a count that the caller owns."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Module()
        self.layer.register_buffer("keys", torch.zeros(5, 3))
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, rows, place, count):
        count.add_(1)
        self.layer.keys.index_copy_(0, place, rows)
        return {"sum": self.layer.keys.sum(0) * self.scale, "count": count * 2}


def test_buffers_come_in_and_go_out_and_arguments_go_out():
    example = torch.ones(1, 3), torch.tensor([0]), torch.zeros(1)
    program, states = with_state(torch.export.export(Cache(), example))
    # In the order in which PyTorch lists changes: buffers, then arguments.
    assert states == (
        State("layer_keys", "layer_keys_out", "layer.keys"),
        State("count", "count_out", None),
    )
    assert program.graph_signature.user_inputs == ("rows", "place", "count", "layer_keys")
    judge = TorchProgram(program, program.graph_signature.user_inputs)
    model, keys, count = Cache(), torch.zeros(5, 3), torch.zeros(1)
    for place in (1, 3, 1):
        rows = torch.randn(1, 3)
        expected = model(rows, torch.tensor([place]), own := count.clone())
        values = rows, torch.tensor([place]), count, keys
        names = ("rows", "place", "count", "layer_keys")
        given = {name: value.numpy() for name, value in zip(names, values, strict=True)}
        total, double, *after = map(torch.from_numpy, judge.run(given))
        keys, count = after
        torch.testing.assert_close(total, expected["sum"])
        torch.testing.assert_close(double, expected["count"])
        torch.testing.assert_close(keys, model.layer.keys)
        torch.testing.assert_close(count, own)


def test_a_pure_program_stays_the_same_object():
    class Local(nn.Module):
        def forward(self, x):
            y = x.clone()
            y.add_(1)  # nobody else sees this
            return y

    program = torch.export.export(Local(), (torch.ones(2),))
    assert with_state(program) == (program, ())


class Held:
    """What a cache of transformers is: an object with tensors, and no module."""

    def __init__(self):
        self.keys, self.count = torch.zeros(1, 6, 2), torch.zeros((), dtype=torch.int64)

    def update(self, x, place):
        self.count.add_(1)
        self.keys.index_copy_(1, place, x)
        return self.keys * self.count


class WithCache(nn.Module):
    def __init__(self, named):
        super().__init__()
        self.cache = Held()
        if named:
            self.register_buffer("keys", self.cache.keys)

    def forward(self, x, place):
        return self.cache.update(x, place).sum(1)


class Mean(nn.Module):
    """A buffer with the name of an operator."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.mean(0))
        return x - self.mean


@pytest.mark.parametrize("named", [*thorough([False]), True])
def test_tensors_of_an_object_are_state(named):
    torch.manual_seed(0)
    net = WithCache(named)
    x, place = torch.randn(1, 1, 2), torch.tensor([0])
    program = torch.export.export(WithCache(named), (x, place))
    opened, states = with_state(program)
    assert len(states) == 2 and ("keys" in {state.input for state in states}) == named
    shapes = {node.name: node.meta["val"].shape for node in opened.graph.find_nodes(op="placeholder")}
    values = {
        state.input: torch.zeros(shape, dtype=torch.float32 if shape else torch.int64)
        for state in states
        for shape in (shapes[state.input],)
    }
    for step in range(4):
        x, place = torch.randn(1, 1, 2), torch.tensor([step])
        y, *after = opened.module()(x, place, **values)
        torch.testing.assert_close(y, net(x, place))
        values = dict(zip((state.input for state in states), after, strict=True))


@pytest.mark.thorough
def test_a_buffer_with_the_name_of_an_operator_keeps_it():
    torch.manual_seed(0)
    net, x = Mean(), torch.randn(3, 2)
    opened, (state,) = with_state(torch.export.export(Mean(), (x,)))
    assert (state.input, state.output) == ("mean", "mean_out")
    value = torch.zeros(2)
    for _ in range(3):
        y, value = opened.module()(x, mean=value)
        torch.testing.assert_close(y, net(x))
    assert "mean" in {spec.name for spec in import_torch(torch.export.export(Mean(), (x,))).signature.inputs}


class Rows(nn.Module):
    """A loop that assigns to rows of a tensor of its own, or of what its caller gave."""

    def __init__(self, own: bool):
        super().__init__()
        self.own = own

    def forward(self, x):
        rows = x + 1 if self.own else x.view(4, 3)
        for i in range(1, 4):
            rows[i, :2] = rows[i, :2] + rows[i - 1, :2].clone()
        return rows * 2


@pytest.mark.thorough
def test_changes_of_own_tensors_are_no_state(monkeypatch):
    """PyTorch took minutes to say that a gated delta rule changes nothing of its caller's."""
    example = (torch.ones(4, 3),)
    with torch.no_grad():
        program = torch.export.export(Rows(False).eval(), example, strict=False)
        assert [state.input for state in with_state(program)[1]] == ["x"]
        program = torch.export.export(Rows(True).eval(), example, strict=False)
    assert any("copy_" in str(node.target) for node in program.graph.nodes)
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    assert with_state(program) == (program, ())
