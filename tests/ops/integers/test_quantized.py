import numpy as np
import pytest
import torch
from torch.nn import functional

from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from tests.ops.helpers import run_workload

OUT = ("int32", "float32", "int8", "uint8")


def operands(op, seed=0, scale=3e-4):
    generator = np.random.default_rng(seed)
    arrays = []
    for operand in op.inputs:
        if operand.dtype == "float32":
            arrays.append((generator.random(operand.shape) * scale + scale / 9).astype(np.float32))
        else:
            limits = np.iinfo(operand.dtype if operand.name != "bias" else np.int16)
            values = generator.integers(limits.min, limits.max + 1, operand.shape)
            arrays.append(values.astype(operand.dtype))
    return arrays


def finished(op, sums, bias, scale, vector):
    """Exact sums to the result, value by value in Python's own arithmetic where rounding matters."""
    sums = sums + bias.reshape(vector)
    if op.out == "int32":
        return np.maximum(sums, 0) if op.relu else sums
    y = sums.astype(np.float32) * scale.reshape(vector)
    y = np.maximum(y, 0) if op.relu else y
    if op.out == "float32":
        return y
    limits = np.iinfo(op.out)
    rounded = [min(max(round(float(v)) + op.y_zero, limits.min), limits.max) for v in y.ravel()]
    return np.array(rounded).reshape(y.shape)


def check_exactly(op, sums, vector, arrays):
    bias, *scale = arrays[2:]
    wanted = finished(op, sums, bias, scale[0] if scale else None, vector)
    assert from_json(op.to_json()) == op
    for found in (op.reference(*arrays), run_workload(op, arrays)[0]):
        assert found.dtype == op.out and found.shape == op.output.shape
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
def test_products(x_dtype, out, relu):
    op = QuantMatmul(x_dtype, out, {"int8": -5, "uint8": 7}.get(out, 0), relu, (2, 3), 5, 17)
    arrays = operands(op)
    x, w = (a.astype(np.int64) for a in arrays[:2])
    check_exactly(op, (x - 128 * (x_dtype == "uint8")) @ w, (-1,), arrays)


def test_one_value_and_saturation():
    op = QuantMatmul("int8", "int8", 0, False, (1,), 2, 1)
    arrays = [np.array([[100]]), np.array([[100, -100]]), np.array([0, 0]), np.array([1.0, 1.0])]
    arrays = [a.astype(o.dtype) for a, o in zip(arrays, op.inputs, strict=True)]
    assert run_workload(op, arrays)[0].tolist() == op.reference(*arrays).tolist() == [[127, -128]]


def test_halves_are_rounded_to_even():
    op = QuantMatmul("int8", "int8", 0, False, (4,), 1, 1)
    arrays = [np.array([[1], [3], [5], [-3]]), np.array([[1]]), np.array([0]), np.array([0.5])]
    arrays = [a.astype(o.dtype) for a, o in zip(arrays, op.inputs, strict=True)]
    for found in (run_workload(op, arrays)[0], op.reference(*arrays)):
        assert found.ravel().tolist() == [0, 2, 2, -2]


def test_sums_wrap():
    op = QuantMatmul("int8", "int32", 0, False, (1,), 1, 1)
    arrays = [np.array([[1]]), np.array([[1]]), np.array([2**31 - 1])]
    arrays = [a.astype(o.dtype) for a, o in zip(arrays, op.inputs, strict=True)]
    assert run_workload(op, arrays)[0].item() == op.reference(*arrays).item() == -(2**31)


CONVOLUTIONS = {
    "one of each": {},
    "odd everything": {
        "batch": 2,
        "channels": 3,
        "height": 7,
        "width": 6,
        "filters": 4,
        "kernel": (3, 2),
        "strides": (2, 1),
        "padding": (1, 0, 0, 2),
        "dilation": (1, 2),
        "fill": -7,
    },
    "depthwise": {
        "channels": 4,
        "height": 5,
        "width": 5,
        "filters": 4,
        "kernel": (3, 3),
        "padding": (1, 1, 1, 1),
        "groups": 4,
        "fill": 3,
    },
    "groups": {"channels": 4, "height": 5, "width": 5, "filters": 6, "kernel": (3, 3), "groups": 2},
}


@pytest.mark.parametrize("fields", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
@pytest.mark.parametrize("x_dtype, out", [("int8", "int32"), ("uint8", "uint8"), ("int8", "float32")])
def test_convolutions(fields, x_dtype, out):
    """PyTorch's convolution in float64 is exact for such sums."""
    op = QuantConv2d(x_dtype, out, 7 if out == "uint8" else 0, **fields)
    arrays = operands(op, scale=2e-3)
    top, left, bottom, right = op.padding
    x = torch.from_numpy(arrays[0].astype(np.float64)) - 128 * (x_dtype == "uint8")
    x = functional.pad(x, (left, right, top, bottom), value=op.fill)
    w = torch.from_numpy(arrays[1].astype(np.float64))
    sums = functional.conv2d(x, w, stride=op.strides, dilation=op.dilation, groups=op.groups)
    check_exactly(op, sums.numpy().astype(np.int64), (-1, 1, 1), arrays)


def test_cost_and_labels():
    op = QuantMatmul("uint8", "int8", 3, True, (2, 3), 5, 7)
    assert op.flops == 2 * 6 * 5 * 7 and op.nbytes == 6 * 7 + 7 * 5 + 4 * 5 + 4 * 5 + 6 * 5
    assert op.label == "quant_matmul_6x7x5_relu_uint8_int8"
    conv = QuantConv2d(**CONVOLUTIONS["groups"])
    assert conv.flops == 2 * 6 * 9 * 2 * 9 and conv.nbytes == 100 + 6 * 2 * 9 + 4 * 6 + 4 * 6 * 9
    assert conv.label == "quant_conv2d_4x5x5_6_k3x3s1_int8_int32"
