"""State of programs: what was changed in place comes in and goes out."""

import torch
from torch import nn

from hetero_tvm.frontend.torch.run import TorchProgram
from hetero_tvm.frontend.torch.state import State, with_state


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
