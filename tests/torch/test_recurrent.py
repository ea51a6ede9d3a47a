"""Recurrent layers under ``torch.compile``: graphs of this backend have them, those of others do not."""

import pickle

import pytest
import torch

import hetero_tvm.torch  # registers the backend  # noqa: F401
from hetero_tvm.torch.backend import hetero_tvm as backend
from hetero_tvm.torch.recurrent import OfThisBackend
from tests.selection import thorough


class Tagger(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.middle = torch.nn.Linear(3, 4), getattr(torch.nn, kind)(4, 5, batch_first=True)
        self.last = torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu())[0])


@pytest.mark.parametrize("kind", ["LSTM", *thorough(["GRU", "RNN"])])
def test_a_model_with_a_recurrence_is_one_graph(kind, tmp_path):
    torch._dynamo.reset()
    torch.manual_seed(0)
    events, model, x = [], Tagger(kind).eval(), torch.randn(2, 6, 3)
    options = {"cache": str(tmp_path), "refused": "raise", "on_event": events.append, "check": False}
    net = torch.compile(model, backend="hetero_tvm", options=options)
    with torch.no_grad():
        torch.testing.assert_close(net(x), model(x), rtol=1e-4, atol=1e-5)
    assert [event["event"] for event in events] == ["compiled"]


@pytest.mark.parametrize("gradients", [False, True])
def test_graphs_of_other_backends_and_of_gradients_are_as_dynamo_makes_them(gradients):
    torch._dynamo.reset()
    graphs = []

    def other(gm, inputs):
        graphs.append(gm)
        return gm

    model, x = Tagger("LSTM"), torch.randn(2, 6, 3)
    with torch.set_grad_enabled(gradients):
        torch.compile(model, backend=other)(x)
    assert not graphs


def test_the_setting_is_false_where_nothing_is_traced():
    setting = OfThisBackend(backend)
    assert not setting and pickle.loads(pickle.dumps(setting)) is False
