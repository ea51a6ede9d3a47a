"""Models that PyTorch cannot trace are refused by the line that is the cause, or the tensors that are."""

import pytest
import torch
from torch import nn

import hetero_tvm.torch
from hetero_tvm.api import import_model
from hetero_tvm.errors import ModelError


class Counting(nn.Module):
    def forward(self, x):
        found = x[x.sum(1) > 0]
        if found.shape[0] == x.shape[0]:  # which images are padding, as Idefics3 asks
            return found * 2
        return torch.cat([found, found])


def test_decisions_by_values_name_the_line():
    with pytest.raises(ModelError, match="only a run knows") as failure:
        hetero_tvm.torch.compile(Counting().eval(), torch.randn(6, 4))
    (problem,) = failure.value.problems
    assert "test_causes.py" in problem and "found.shape[0] == x.shape[0]" in problem
    assert "SymNode" not in str(failure.value)


def test_tensors_without_values_are_named():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    model[1].to("meta")
    with pytest.raises(ModelError, match="device meta") as failure:
        hetero_tvm.torch.compile(model.eval(), torch.randn(2, 4))
    assert list(failure.value.problems) == ["1.weight", "1.bias"]
    with pytest.raises(ModelError, match="argument 0"):
        hetero_tvm.torch.compile(nn.Linear(4, 8).eval(), torch.randn(2, 4, device="meta"))
    whole = nn.Linear(4, 8, device="meta").eval()
    with torch.no_grad():
        program = torch.export.export(whole, (torch.randn(2, 4, device="meta"),))
    with pytest.raises(ModelError, match="device meta"):
        import_model(program)
