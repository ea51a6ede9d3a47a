"""A small program that the tests of this folder share."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn


class Net(nn.Module):
    """Tokens and a float input -> a dictionary with a tensor, and a list with another."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids, mask=None, scaled=True):
        x = self.table(ids)
        x = self.norm(x + self.body(x)) * (2.0 if scaled else 1.0)
        return {"states": x if mask is None else x * mask[..., None], "more": [x.amax(-1), None]}


def net():
    torch.manual_seed(0)
    return Net().eval()


IDS = torch.arange(10).reshape(2, 5)
