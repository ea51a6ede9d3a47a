"""Convolutions of rows, of volumes, transposed ones on the CPU: kernels of a space, onnxruntime's numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.selection import exhaustive, thorough

# Float32 sums of up to some thousand products: 1e-5 of the largest value, as everywhere.
TOLERANCE = 1e-5

CONV1D = {
    "plain": ((1, 8, 40), (16, 8, 3), {"pads": [1, 1]}),
    "odd": ((2, 7, 33), (13, 7, 5), {"pads": [3, 1]}),
    "strided": ((1, 8, 41), (16, 8, 4), {"strides": [3]}),
    "dilated": ((1, 16, 50), (16, 16, 3), {"dilations": [8], "pads": [8, 8]}),
    "grouped": ((1, 16, 30), (32, 4, 9), {"group": 4, "pads": [4, 4]}),
    "depthwise": ((1, 24, 60), (24, 1, 31), {"group": 24, "pads": [15, 15]}),
    "one input channel": ((1, 1, 200), (32, 1, 10), {"strides": [5]}),
    "one pixel": ((1, 4, 3), (8, 4, 3), {}),
}
CONV3D = {
    "plain": ((1, 4, 6, 9, 8), (8, 4, 3, 3, 3), {"pads": [1] * 6}),
    "odd": ((2, 3, 5, 7, 6), (5, 3, 2, 3, 1), {"pads": [0, 1, 0, 1, 0, 2]}),
    "strided": ((1, 6, 9, 9, 9), (4, 6, 3, 3, 3), {"strides": [2, 1, 2], "pads": [1, 1, 1, 1, 1, 1]}),
    "dilated": ((1, 4, 9, 6, 6), (4, 4, 3, 3, 3), {"dilations": [3, 1, 2], "pads": [0, 1, 2, 0, 1, 2]}),
    "grouped": ((1, 8, 4, 5, 5), (8, 2, 2, 3, 3), {"group": 4}),
    "flat": ((1, 4, 1, 6, 6), (4, 4, 1, 3, 3), {}),
    "depthwise": ((2, 20, 5, 6, 7), (20, 1, 3, 3, 3), {"group": 20, "pads": [1] * 6}),
    "depthwise, of slices": ((1, 9, 7, 6, 6), (9, 1, 5, 1, 1), {"group": 9, "pads": [4, 0, 0, 0, 0, 0]}),
    "more filters": ((2, 33, 6, 7, 7), (40, 33, 3, 3, 3), {"pads": [2, 1, 1, 0, 1, 1]}),
}
TRANSPOSED = {
    "2x2 s2": ((1, 16, 9, 7), (16, 8, 2, 2), {"strides": [2, 2]}),
    "4x4 s2": ((2, 8, 5, 6), (8, 12, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "3x3 s2, one more": (
        (1, 8, 6, 5),
        (8, 8, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    "uneven": ((1, 6, 4, 9), (6, 5, 3, 5), {"strides": [1, 3], "pads": [0, 2, 1, 1]}),
    "dilated": ((1, 4, 6, 6), (4, 4, 3, 3), {"dilations": [2, 2]}),
    "grouped": ((1, 8, 5, 5), (8, 3, 4, 4), {"strides": [2, 2], "group": 4}),
    "rows": ((1, 16, 20), (16, 8, 16), {"strides": [8], "pads": [4, 4]}),
    "rows, odd": ((2, 5, 11), (5, 3, 7), {"strides": [3], "pads": [2, 0]}),
}


def model_of(operator, x, weight, attributes, bias):
    rng = np.random.default_rng(0)
    outputs = weight[1] * attributes.get("group", 1) if operator == "ConvTranspose" else weight[0]
    shapes = {"w": weight, "b": (outputs,)} if bias else {"w": weight}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *shapes], ["y"], "convolution", **attributes)],
        "one_convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


FORMS = {"Conv": CONV1D, "Conv3d": CONV3D, "ConvTranspose": TRANSPOSED}
WITH_BIAS = [(operator, name, True) for operator, cases in FORMS.items() for name in cases]
PLAIN = [(operator, name, False) for operator, cases in FORMS.items() for name in cases]
MORE = (
    *("odd", "strided", "one input channel", "depthwise, of slices", "more filters"),
    *("4x4 s2", "3x3 s2, one more", "uneven"),
)
"""Forms that run with the thorough selection: they have the kernels of others."""
KINDS = [case for case in PLAIN if case[1] in ("plain", "2x2 s2", "grouped")]


@pytest.mark.parametrize(
    "operator, case, bias",
    [
        *(case for case in WITH_BIAS if case[1] not in MORE),
        *thorough(case for case in WITH_BIAS if case[1] in MORE),
        *KINDS,
        *exhaustive(case for case in PLAIN if case not in KINDS),
    ],
)
def test_numbers_and_kernels(operator, case, bias):
    x, weight, attributes = FORMS[operator][case]
    model = model_of(operator.removesuffix("3d"), x, weight, attributes, bias)
    optimized = optimize_model(import_model(model), "cpu")
    kinds = ("conv2d", "conv3d")
    convolutions = [task for task in optimized.tasks if task.op is not None and task.op.kind in kinds]
    assert len(convolutions) == 1 and convolutions[0].space is not None
    assert not bias or "bias" in convolutions[0].name  # no kernel of its own
    array = np.random.default_rng(1).standard_normal(x).astype(np.float32)
    (y,) = build_model(optimized, use_shipped=False).run({"x": array})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": array})[0]
    assert y.shape == expected.shape
    assert np.abs(y - expected).max() <= TOLERANCE * np.abs(expected).max()
