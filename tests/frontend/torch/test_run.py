"""Programs as their own reference, in float32 and float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.export import export

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import AccuracyError
from hetero_tvm.reference import run_reference
from tests.frontend.torch.programs import IDS, net
from tests.selection import thorough


@pytest.mark.thorough
def test_the_program_judges_the_numbers(monkeypatch):
    """A fault of the translation cannot hide: the reference never sees the translated model."""
    from hetero_tvm.frontend.torch import importer as front

    translate = front.to_onnx

    def wrong(program):
        model = translate(program)
        for node in model.proto.graph.node:
            if node.op_type == "Gelu":
                node.op_type = "Relu"
                del node.attribute[:]
        return model

    monkeypatch.setattr(front, "to_onnx", wrong)
    built = build_model(optimize_model(import_model(export(net(), (IDS,)))), use_shipped=False)
    with pytest.raises(AccuracyError):
        built.check()


def test_float64_is_float64_everywhere():
    """int / int, constants and types written in the program widen too."""

    class Thirds(nn.Module):
        def forward(self, ids):
            third = ids / 3
            return third + torch.full((3,), 0.1) + ids.to(torch.float32) / torch.arange(1, 4)

    model = import_model(export(Thirds(), (torch.tensor([1, 2, 4]),)))
    ids = np.array([1, 2, 4])
    exact = ids / 3 + 0.1 + ids / np.arange(1, 4)
    np.testing.assert_allclose(run_reference(model, {"ids": ids}).float64[0], exact, rtol=1e-15)
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, *thorough([torch.float16])])
def test_programs_in_half_precision_are_their_own_reference(dtype):
    """Inputs, results, and weights that are results as well."""

    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.arange(12.0).reshape(3, 4).to(dtype))

        def forward(self, x):
            return x * 2 + self.weight, self.weight

    built = build_model(
        optimize_model(import_model(export(Doubled(), (torch.zeros(3, 4, dtype=dtype),)))), use_shipped=False
    )
    assert built.check().ok
    x = np.linspace(-1, 1, 12).reshape(3, 4).astype(built.optimized.signature.inputs[0].dtype)
    reference = run_reference(built.optimized.model, {"x": x})
    assert [str(array.dtype) for array in reference.float32] == [str(dtype).removeprefix("torch.")] * 2
    np.testing.assert_allclose(
        reference.float64[0], 2 * x.astype(np.float64) + np.arange(12.0).reshape(3, 4), rtol=1e-15
    )


def test_operators_without_float64_are_run_in_float32():
    class Simulated(nn.Module):
        def forward(self, x):
            scales = torch.full((3,), 0.1)
            return torch.fake_quantize_per_channel_affine(x * 2, scales, torch.zeros(3).int(), 1, -8, 7)

    x = torch.randn(2, 3)
    found = run_reference(import_model(export(Simulated(), (x,))), {"x": x.numpy()})
    np.testing.assert_allclose(found.float64[0], Simulated()(x).numpy(), atol=1e-6)
