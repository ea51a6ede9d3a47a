"""LSTM layers with projected states against PyTorch's own."""

import pytest
import torch
from torch import nn

from hetero_tvm.frontend.torch.decompositions import decompositions
from hetero_tvm.frontend.torch.importer import import_torch
from hetero_tvm.reference import run_reference
from tests.frontend.onnx.helpers import operators

LSTM = decompositions()[torch.ops.aten.lstm.input]


@pytest.mark.parametrize("layers, both", [(1, False), (2, True)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_projected_states(layers, both, bias, batch_first):
    torch.manual_seed(0)
    settings = dict(bidirectional=both, bias=bias, batch_first=batch_first, proj_size=3, num_layers=layers)
    net = nn.LSTM(5, 4, **settings).double().eval()
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    count = layers * (1 + both)
    batch = 2 if batch_first else 6
    states = tuple(torch.randn(count, batch, n, dtype=torch.float64) for n in (3, 4))
    y, (h, c) = net(x, states)
    found = LSTM(x, states, net._flat_weights, bias, layers, 0.0, False, both, batch_first)
    for ours, theirs in zip(found, (y, h, c), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_plain_layers_are_left_alone():
    net = nn.LSTM(5, 4)
    zeros = torch.zeros(1, 2, 4)
    given = (torch.zeros(3, 2, 5), (zeros, zeros), net._flat_weights, True, 1, 0.0, False, False, False)
    assert LSTM(*given) is NotImplemented


@pytest.mark.thorough
def test_a_program_with_projected_states_is_one_layer():
    torch.manual_seed(0)
    net, x = nn.LSTM(5, 4, proj_size=3).eval(), torch.randn(6, 2, 5)
    model = import_torch(torch.export.export(net, (x,)))
    assert operators(model)["LSTM"] == 1
    y, (h, c) = net(x)
    reference = run_reference(model, {model.signature.inputs[0].name: x.numpy()})
    for ours, theirs in zip(reference.float32, (y, h, c), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs.detach())
