"""Quantisers against PyTorch's and PT2E's own operators."""

import importlib
import subprocess
import sys

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions
from hetero_tvm.frontend.torch.operators import quantizers


@pytest.mark.parametrize(
    "x", [torch.randn(5, 7), torch.rand(4) + 1, -torch.rand(4), torch.zeros(3)], ids=range(4)
)
@pytest.mark.parametrize("low, high, dtype", [(0, 255, torch.uint8), (-128, 127, torch.int8)])
def test_scale_zero_point_and_steps(x, low, high, dtype):
    importlib.import_module(quantizers.MODULE)
    operators, table = torch.ops.quantized_decomposed, decompositions()
    wanted = operators.choose_qparams.tensor(x, low, high, 1e-7, dtype)
    found = table[operators.choose_qparams.tensor](x, low, high, 1e-7, dtype)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
    limits = (*wanted, low, high, dtype)
    steps = operators.quantize_per_tensor.tensor(x, *limits)
    torch.testing.assert_close(table[operators.quantize_per_tensor.tensor](x, *limits), steps)
    values = operators.dequantize_per_tensor.tensor(steps, *limits)
    torch.testing.assert_close(table[operators.dequantize_per_tensor.tensor](steps, *limits), values)


class Dynamic(torch.nn.Module):
    """A linear layer of a tensor that is quantised at run time, as PT2E writes it."""

    def forward(self, x, w):
        ops = torch.ops.quantized_decomposed
        limits = (*ops.choose_qparams.tensor(x, 0, 255, 1e-7, torch.uint8), 0, 255, torch.uint8)
        x = ops.dequantize_per_tensor.tensor(ops.quantize_per_tensor.tensor(x, *limits), *limits)
        return x @ w


@pytest.mark.exhaustive
def test_a_saved_program_is_read_where_its_operators_are_not_registered(tmp_path):
    importlib.import_module(quantizers.MODULE)
    x, w = torch.randn(3, 8), torch.randn(8, 4)
    torch.export.save(torch.export.export(Dynamic(), (x, w)), tmp_path / "dynamic.pt2")
    torch.save((x, w, Dynamic()(x, w)), tmp_path / "data.pt")
    program = f"""
import torch, hetero_tvm
model = hetero_tvm.import_model({str(tmp_path / "dynamic.pt2")!r})
x, w, y = torch.load({str(tmp_path / "data.pt")!r})
names = [spec.name for spec in model.signature.inputs]
built = hetero_tvm.build_model(hetero_tvm.optimize_model(model, "cpu"), use_shipped=False)
given = torch.tensor(built.run(dict(zip(names, (x.numpy(), w.numpy()))))[0])
assert (given - y).abs().max() < 1e-5, (given, y)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_simulated_quantisation_and_where_its_gradient_passes():
    aten, table = torch.ops.aten, decompositions()
    x, scales, zeros = torch.randn(3, 4) * 2, torch.rand(4) * 0.1 + 0.01, torch.tensor([3, 0, -2, 5]).int()
    scale, zero = torch.tensor([0.02]), torch.tensor([3]).int()
    calls = [
        (aten.fake_quantize_per_tensor_affine_cachemask.default, (x, 0.02, 3, -8, 7)),
        (aten.fake_quantize_per_channel_affine_cachemask.default, (x, scales, zeros, 1, -8, 7)),
    ]
    for on in (0, 1):
        arguments = x, scale, zero, torch.tensor([on]), -8, 7
        calls.append((aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, arguments))
    for operator, arguments in calls:
        for one, other in zip(table[operator](*arguments), operator(*arguments), strict=True):
            torch.testing.assert_close(one, other)
