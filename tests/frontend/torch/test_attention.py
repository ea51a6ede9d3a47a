"""Queries that see no key: zero from PyTorch's own attention, NaN from a softmax, or a mean."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from hetero_tvm.api import build_model, import_model, optimize_model

LEAST = torch.finfo(torch.float32).min


class Own(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Written(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, -1) @ v


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [False, -torch.inf, LEAST])
@pytest.mark.parametrize("module", [Own(), Written()])
def test_a_query_that_sees_no_key(module, hidden):
    if isinstance(module, Written) and hidden is False:
        return  # no sum has truth values
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 16, generator=generator) for n in (6, 7, 7))
    seen = torch.rand(2, 1, 6, 7, generator=generator) > 0.4
    seen[0, 0, 1] = seen[1, 0, 5] = False
    mask = seen if hidden is False else torch.zeros(seen.shape).masked_fill(~seen, hidden)
    optimized = optimize_model(import_model(torch.export.export(module, (q, k, v, mask))))
    assert any(task.name.startswith("attention") for task in optimized.tasks)
    names = [spec.name for spec in optimized.model.signature.inputs]
    arrays = dict(zip(names, (x.numpy() for x in (q, k, v, mask)), strict=True))
    (result,) = build_model(optimized, use_shipped=False).run(arrays)
    np.testing.assert_allclose(result, module(q, k, v, mask).numpy(), atol=2e-6)
