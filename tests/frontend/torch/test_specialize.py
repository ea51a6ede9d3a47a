"""Adaptive pooling with open height and width has the windows of the sizes that are asked for."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.export import Dim, export

from hetero_tvm.api import build_model, import_model, optimize_model


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(17, 23), (24, 20)])
def test_adaptive_pooling(size):
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d((2, 5))).eval()
    open_sizes = {2: Dim("h", min=8, max=64), 3: Dim("w", min=8, max=64)}
    program = export(module, (torch.zeros(1, 3, 16, 20),), dynamic_shapes=(open_sizes,))
    model = import_model(program, shapes={program.graph_signature.user_inputs[0]: (1, 3, *size)})
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    (result,) = build_model(optimize_model(model), use_shipped=False).run(
        {model.signature.inputs[0].name: x.numpy()}
    )
    np.testing.assert_allclose(result, module(x).detach().numpy(), atol=1e-5)
