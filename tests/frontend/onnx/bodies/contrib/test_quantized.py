"""ONNX Runtime's quantised operators written out: its own numbers, to a step of the result's scale."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import run_onnxruntime

RANDOM = np.random.default_rng(0)


def u8(*shape):
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def i8(*shape):
    return RANDOM.integers(-128, 128, shape).astype(np.int8)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def scale(value):
    return np.float32(value)


ZERO = np.uint8(120)
A, B_ = (u8(2, 3, 4), scale(0.02), ZERO), (u8(2, 3, 4), scale(0.03), np.uint8(7))
IMAGE = (u8(1, 3, 4, 5), scale(0.02), ZERO)
OUT = (scale(0.05), np.uint8(100))
BITS4 = dict(K=40, N=6, bits=4, block_size=16)

CASES = {
    "add": ("QLinearAdd", (*A, *B_, *OUT), {}, "uint8"),
    "mul": ("QLinearMul", (*A, *B_, *OUT), {}, "uint8"),
    "sigmoid": ("QLinearSigmoid", (*A, scale(1 / 256), np.uint8(0)), {}, "uint8"),
    "leaky": ("QLinearLeakyRelu", (*A, *OUT), {"alpha": 0.1}, "uint8"),
    "global pool": ("QLinearGlobalAveragePool", (*IMAGE, *OUT), {}, "uint8"),
    "global pool, channels last": ("QLinearGlobalAveragePool", (*IMAGE, *OUT), {"channels_last": 1}, "uint8"),
    "pool": ("QLinearAveragePool", (*IMAGE, *OUT), {"kernel_shape": [2, 2], "strides": [2, 1]}, "uint8"),
    "convolution, channels last": (
        "QLinearConv",
        (
            u8(1, 6, 7, 3),
            scale(0.02),
            ZERO,
            i8(6, 1, 3, 3),
            floats(6) ** 2 / 50 + 0.01,
            np.zeros(6, np.int8),
            *OUT,
        ),
        {"channels_last": 1, "group": 3, "pads": [1, 1, 1, 1]},
        "uint8",
    ),
    "softmax": ("QLinearSoftmax", (*A, scale(1 / 256), np.uint8(0)), {"axis": -1, "opset": 17}, "uint8"),
    "concat": ("QLinearConcat", (*OUT, *A, *B_), {"axis": 1}, "uint8"),
    "gemm": (
        "QGemm",
        (u8(3, 8), scale(0.02), ZERO, i8(5, 8), scale(0.01), np.int8(0), np.arange(5, dtype=np.int32), *OUT),
        {"transB": 1},
        "uint8",
    ),
    "gemm to floats": (
        "QGemm",
        (u8(3, 8), scale(0.02), ZERO, i8(8, 5), scale(0.01), np.int8(0), np.arange(5, dtype=np.int32)),
        {"alpha": 0.5},
        "float32",
    ),
    "integers to floats": (
        "MatMulIntegerToFloat",
        (u8(3, 8), i8(8, 5), scale(0.02), floats(5) ** 2, ZERO, np.zeros(5, np.int8), floats(5)),
        {},
        "float32",
    ),
    "dynamic": (
        "DynamicQuantizeMatMul",
        (floats(3, 8), i8(8, 5), scale(0.01), np.int8(3), floats(5)),
        {},
        "float32",
    ),
    "quantize": ("QuantizeLinear", (floats(2, 3, 4), floats(3) ** 2 + 0.1, u8(3)), {"axis": 1}, "uint8"),
    "dequantize": ("DequantizeLinear", (*A[:1], floats(3) ** 2, u8(3)), {"axis": 1}, "float32"),
    "attention": (
        "QAttention",
        # of larger weights ONNX Runtime's sums of pairs saturate on processors without VNNI
        (u8(2, 4, 8), i8(8, 24) // 2, floats(24), scale(0.02), scale(0.01), None, ZERO, np.int8(0)),
        {"num_heads": 2, "unidirectional": 1},
        "float32",
    ),
    "4 bits": ("MatMulNBits", (floats(3, 40), u8(6, 3, 8), floats(18)), BITS4, "float32"),
    "4 bits, zero points": (
        "MatMulNBits",
        (floats(3, 40), u8(6, 3, 8), floats(18), u8(12), None, floats(6)),
        BITS4,
        "float32",
    ),
    "4 bits, groups in another order": (
        "MatMulNBits",
        (
            floats(3, 48),
            u8(6, 3, 8),
            floats(18),
            None,
            np.random.default_rng(5).permutation(48).astype(np.int32) // 16,
        ),
        {**BITS4, "K": 48},
        "float32",
    ),
    "8 bits": (
        "MatMulNBits",
        (floats(3, 32), u8(6, 2, 16), floats(12), u8(12)),
        {**BITS4, "K": 32, "bits": 8},
        "float32",
    ),
    "NF4": (
        "MatMulBnb4",
        (floats(3, 32), u8(6 * 32 // 2), floats(12) ** 2),
        {"K": 32, "N": 6, "block_size": 16, "quant_type": 1},
        "float32",
    ),
    "FP4": (
        "MatMulBnb4",
        (floats(3, 32), u8(6 * 32 // 2), floats(12) ** 2),
        {"K": 32, "N": 6, "block_size": 16, "quant_type": 0},
        "float32",
    ),
    "lookup": (
        "GatherBlockQuantized",
        (u8(7, 16), np.array([[1, -1], [6, 0]]), floats(7, 2), u8(7, 1)),
        {"block_size": 16, "quantize_axis": 1, "gather_axis": 0, "bits": 4},
        "float32",
    ),
}


def model_of(kind, values, attributes, dtype):
    """The node with its first operand, and indices, as inputs, and all else as weights."""
    names = ["" if value is None else f"v{n}" for n, value in enumerate(values)]
    first = 1 if kind == "GatherBlockQuantized" else 2 if kind == "QLinearConcat" else 0
    given = np.asarray(values[first])
    element = helper.np_dtype_to_tensor_dtype(given.dtype)
    weights = [
        numpy_helper.from_array(np.asarray(value), f"v{n}")
        for n, value in enumerate(values)
        if value is not None and n != first
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], "node", domain="com.microsoft", **attributes)],
        "quantised",
        [helper.make_tensor_value_info(f"v{first}", element, given.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)],
        weights,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), {f"v{first}": given}


@pytest.mark.parametrize("kind, values, attributes, dtype", CASES.values(), ids=CASES.keys())
def test_numbers(kind, values, attributes, dtype):
    model, inputs = model_of(kind, values, attributes, dtype)
    (expected,) = run_onnxruntime(model, inputs)
    (got,) = run_onnxruntime(import_onnx(model).onnx_model, inputs)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    # Whole numbers may round the other way; ONNX Runtime's products of 4 and 8 bits quantise rows or sum
    # in another order.
    tolerance = 1 if dtype == "uint8" else 1e-4 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=0, atol=tolerance)


def test_weights_that_are_not_constants_are_refused():
    model, _ = model_of(*CASES["4 bits"])
    packed = next(t for t in model.graph.initializer if t.name == "v1")
    model.graph.input.append(helper.make_tensor_value_info("v1", TensorProto.UINT8, packed.dims))
    model.graph.initializer.remove(packed)
    with pytest.raises(UnsupportedOperatorError, match="'v1', which is no constant"):
        import_onnx(model)


def test_weights_in_the_layout_of_a_gpu_are_refused():
    kind, values, attributes, dtype = CASES["4 bits"]
    model, _ = model_of(kind, values, {**attributes, "weight_prepacked": 1}, dtype)
    with pytest.raises(UnsupportedOperatorError, match=r"weights in the layout .*weight_prepacked=1"):
        import_onnx(model)


@pytest.mark.parametrize("by_channel", [False, True])
def test_recurrent_weights_become_floats(by_channel):
    """As an LSTM with the same weights in floats, and near ONNX Runtime, which rounds states too."""
    x = floats(6, 2, 5)
    w, r = i8(2, 5, 16), i8(2, 4, 16)
    shape = (2, 16) if by_channel else (2,)
    scales = [np.abs(floats(*shape)) * 0.01 + 0.001 for _ in range(2)]
    zeros = [np.zeros(shape, np.int8), np.zeros(shape, np.int8)]
    bias, start = floats(2, 32), floats(2, 2, 4)
    values = [x, w, r, bias, None, start, start * 2, None, scales[0], zeros[0], scales[1], zeros[1]]
    given = {"direction": "bidirectional", "hidden_size": 4}
    model, inputs = model_of("DynamicQuantizeLSTM", values, given, "float32")
    imported = import_onnx(model)
    (got,) = run_onnxruntime(imported.onnx_model, inputs)

    exact = [
        np.ascontiguousarray((v * s.reshape(2, 1, -1)).transpose(0, 2, 1), np.float32)
        for v, s in zip((w, r), scales, strict=True)
    ]
    plain, _ = model_of("LSTM", [x, *exact, bias, None, start, start * 2], given, "float32")
    plain.graph.node[0].domain = ""
    (expected,) = run_onnxruntime(plain, inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    # eight bits of inputs and states, over six steps
    np.testing.assert_allclose(got, run_onnxruntime(model, inputs)[0], rtol=0, atol=0.05)
