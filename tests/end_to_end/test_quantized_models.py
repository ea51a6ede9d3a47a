"""8-bit ONNX models: ONNX Runtime's integers on the CPU and on the NPU."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.selection import thorough

onnxruntime = pytest.importorskip("onnxruntime")

F, U8, I8, I32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32
RNG = np.random.default_rng(0)
# Seven bits: on machines without a wide enough multiplier ONNX Runtime saturates sums of pairs.
MATRIX = RNG.integers(-63, 63, (64, 96)).astype(np.int8)
FILTERS = RNG.integers(-63, 63, (24, 8, 3, 3)).astype(np.int8)
BIAS = RNG.integers(-3000, 3000, 24).astype(np.int32)
STEPS = (RNG.random(24) * 0.01 + 0.001).astype(np.float32)


def model(nodes, x, y, **constants):
    """Nodes as (operator, inputs, output, attributes); x and y as (type, shape)."""
    graph = helper.make_graph(
        [
            helper.make_node(kind, inputs.split(), outputs.split(), name=f"n{n}", **attributes)
            for n, (kind, inputs, outputs, attributes) in enumerate(nodes)
        ],
        "g",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def scale(value):
    return np.float32(value)


def matmul_integer():
    return model(
        [("MatMulInteger", "x w xz", "y", {})], (U8, (128, 64)), (I32, (128, 96)), w=MATRIX, xz=np.uint8(117)
    )


def qlinear_matmul():
    return model(
        [("QLinearMatMul", "x xs xz w ws wz ys yz", "y", {})],
        (U8, (128, 64)),
        (U8, (128, 96)),
        w=MATRIX,
        xs=scale(0.02),
        xz=np.uint8(117),
        ws=np.resize(STEPS, 96),
        wz=np.zeros(96, np.int8),
        ys=scale(0.11),
        yz=np.uint8(130),
    )


def conv_integer():
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    return model(
        [("ConvInteger", "x w xz", "y", attributes)],
        (U8, (1, 8, 17, 16)),
        (I32, (1, 24, 9, 16)),
        w=FILTERS,
        xz=np.uint8(117),
    )


def qlinear_conv():
    return model(
        [("QLinearConv", "x xs xz w ws wz ys yz b", "y", {"pads": [1, 1, 1, 1]})],
        (I8, (1, 8, 17, 16)),
        (I8, (1, 24, 17, 16)),
        w=FILTERS,
        xs=scale(0.02),
        xz=np.int8(-3),
        ws=STEPS,
        wz=np.zeros(24, np.int8),
        ys=scale(0.05),
        yz=np.int8(5),
        b=BIAS,
    )


def grouped(groups):
    """Each filter sees 8 / groups channels; with 8 groups a depthwise convolution."""

    def build():
        filters = 8 if groups == 8 else 24
        attributes = {"pads": [1, 1, 1, 1], "strides": [1, 2], "group": groups}
        return model(
            [("QLinearConv", "x xs xz w ws wz ys yz b", "y", attributes)],
            (U8, (1, 8, 17, 16)),
            (U8, (1, filters, 17, 8)),
            w=FILTERS[:filters, : 8 // groups],
            xs=scale(0.02),
            xz=np.uint8(117),
            ws=STEPS[:filters],
            wz=np.zeros(filters, np.int8),
            ys=scale(0.02),
            yz=np.uint8(130),
            b=BIAS[:filters],
        )

    return build


def qlinear_conv_of_rows():
    return model(
        [("QLinearConv", "x xs xz w ws wz ys yz b", "y", {"pads": [2, 1], "strides": [2]})],
        (U8, (2, 8, 65)),
        (U8, (2, 24, 33)),
        w=FILTERS[:, :, 0],
        xs=scale(0.02),
        xz=np.uint8(117),
        ws=STEPS,
        wz=np.zeros(24, np.int8),
        ys=scale(0.02),
        yz=np.uint8(130),
        b=BIAS,
    )


def quantizers_around_a_convolution():
    nodes = [
        ("QuantizeLinear", "x xs xz", "xq", {}),
        ("DequantizeLinear", "xq xs xz", "xd", {}),
        ("DequantizeLinear", "w ws wz", "wd", {"axis": 0}),
        ("DequantizeLinear", "b bs", "bd", {"axis": 0}),
        ("Conv", "xd wd bd", "c", {"pads": [1, 1, 1, 1]}),
        ("Relu", "c", "r", {}),
        ("QuantizeLinear", "r ys yz", "y", {}),
    ]
    return model(
        nodes,
        (F, (1, 8, 17, 16)),
        (U8, (1, 24, 17, 16)),
        w=FILTERS,
        xs=scale(0.02),
        xz=np.uint8(117),
        ws=STEPS,
        wz=np.zeros(24, np.int8),
        ys=scale(0.05),
        yz=np.uint8(0),
        b=BIAS,
        bs=STEPS * scale(0.02),
    )


def quantizers_around_a_linear_layer():
    """Weights stored [n, k], as PyTorch exports them."""
    nodes = [
        ("QuantizeLinear", "x xs xz", "xq", {}),
        ("DequantizeLinear", "xq xs xz", "xd", {}),
        ("DequantizeLinear", "w ws wz", "wd", {"axis": 0}),
        ("Transpose", "wd", "wt", {"perm": [1, 0]}),
        ("MatMul", "xd wt", "m", {}),
        ("Add", "m b", "a", {}),
        ("QuantizeLinear", "a ys yz", "y", {}),
    ]
    return model(
        nodes,
        (F, (128, 64)),
        (I8, (128, 96)),
        w=np.ascontiguousarray(MATRIX.T),
        xs=scale(0.02),
        xz=np.int8(-7),
        ws=np.resize(STEPS, 96),
        wz=np.zeros(96, np.int8),
        ys=scale(0.05),
        yz=np.int8(3),
        b=np.linspace(-1, 1, 96, dtype=np.float32),
    )


def dynamic():
    """The input's scale and zero point are computed when the model runs."""
    nodes = [
        ("DynamicQuantizeLinear", "x", "xq xs xz", {}),
        ("MatMulInteger", "xq w xz", "i", {}),
        ("Cast", "i", "f", {"to": F}),
        ("Mul", "xs ws", "s", {}),
        ("Mul", "f s", "y", {}),
    ]
    return model(nodes, (F, (128, 64)), (F, (128, 96)), w=MATRIX, ws=scale(0.01))


def drawn(source):
    """The model's input over the whole of its type."""
    kind = source.graph.input[0].type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    if kind.elem_type == F:
        return RNG.standard_normal(shape).astype(np.float32)
    limits = np.iinfo(np.uint8 if kind.elem_type == U8 else np.int8)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(limits.dtype)


EXACT = [
    matmul_integer,
    qlinear_matmul,
    conv_integer,
    qlinear_conv,
    quantizers_around_a_convolution,
    quantizers_around_a_linear_layer,
    grouped(2),
    grouped(8),
    qlinear_conv_of_rows,
]


@pytest.mark.parametrize(
    "make, target",
    [(make, "npu:edge") for make in EXACT]
    + [(make, "cpu") for make in (qlinear_matmul, conv_integer, qlinear_conv)],
)
def test_the_integers_are_those_of_onnx_runtime(make, target):
    source = make()
    x = drawn(source)
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    plan = optimize_model(import_model(source), target)
    actual = build_model(plan, use_shipped=False).run({"x": x})[0]
    difference = np.abs(actual.astype(np.int64) - expected)
    if make in (matmul_integer, conv_integer):
        assert difference.max() == 0
    else:
        # A scale that is multiplied in another order may turn a value that lies half way.
        assert difference.max() <= 1 and (difference > 0).mean() < 1e-3
    if target != "cpu":
        assert plan.report.fusions["quantized"] == 1
        (task,) = [task for task in plan.tasks if task.op.kind.startswith("quant_")]
        assert task.op.out == str(actual.dtype)
        placement = plan.target.placement(plan.module, plan.tasks)
        assert float(re.search(r"([0-9.]+)% of FLOPs on npu", placement)[1]) == 100.0


@pytest.mark.parametrize("target", ["cpu", *thorough(["npu:mobile"])])
def test_scales_that_are_computed_when_the_model_runs(target):
    source = dynamic()
    x = drawn(source)
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    plan = optimize_model(import_model(source), target)
    actual = build_model(plan, use_shipped=False).run({"x": x})[0]
    assert np.abs(actual - expected).max() <= 5e-3 * np.abs(expected).max()
    assert target == "cpu" or plan.report.fusions["quantized"] == 1


def test_what_is_not_worth_the_transfer_runs_on_the_host():
    source = model(
        [("MatMulInteger", "x w xz", "y", {})], (U8, (128, 2)), (I32, (128, 96)), w=MATRIX[:2], xz=np.uint8(1)
    )
    x = drawn(source)
    plan = optimize_model(import_model(source), "npu:edge")
    assert "not worth the transfer" in plan.target.placement(plan.module, plan.tasks)
    actual = build_model(plan, use_shipped=False).run({"x": x})[0]
    np.testing.assert_array_equal(actual, (x.astype(np.int32) - 1) @ MATRIX[:2].astype(np.int32))


@pytest.mark.parametrize("zero", [-100, *thorough([0])])
def test_weights_of_nine_bits_are_sums_of_shorter_ones(zero):
    """A zero point far from the middle of a type makes weights that do not fit it."""
    weights = RNG.integers(0, 255, (64, 96), endpoint=True).astype(np.uint8)
    if zero:
        weights = (weights // 2).astype(np.int8)
    source = model(
        [("MatMulInteger", "x w xz wz", "y", {})],
        (U8, (128, 64)),
        (I32, (128, 96)),
        w=weights,
        xz=np.uint8(1),
        wz=weights.dtype.type(zero),
    )
    x = drawn(source)
    plan = optimize_model(import_model(source), "npu:edge")
    assert "100.0% of FLOPs on npu" in plan.target.placement(plan.module, plan.tasks)
    actual = build_model(plan, use_shipped=False).run({"x": x})[0]
    np.testing.assert_array_equal(actual, (x.astype(np.int32) - 1) @ (weights.astype(np.int32) - zero))


def test_convolutions_of_weights_of_nine_bits():
    source = model(
        [("ConvInteger", "x w xz wz", "y", {"pads": [1, 1, 1, 1]})],
        (U8, (1, 8, 17, 16)),
        (I32, (1, 24, 17, 16)),
        w=FILTERS,
        xz=np.uint8(117),
        wz=np.int8(90),
    )
    x = drawn(source)
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    plan = optimize_model(import_model(source), "npu:edge")
    assert plan.report.fusions["quantized"] == 1
    np.testing.assert_array_equal(build_model(plan, use_shipped=False).run({"x": x})[0], expected)
