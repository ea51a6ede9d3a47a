"""DFT and Col2Im in plain operators: equal to ONNX's own evaluator."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_model
from tests.frontend.onnx.helpers import run_tvm


def model_of(kind, x, *constants, opset=20, **attributes):
    weights = [
        numpy_helper.from_array(np.array(c, np.int64), f"c{n}") for n, c in enumerate(constants) if c != ""
    ]
    names = ["x", *(f"c{n}" if c != "" else "" for n, c in enumerate(constants))]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], "node", **attributes)],
        "transform",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (x.ndim + (kind == "Col2Im")))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


CASES = {
    "real": ("DFT", noise(2, 7, 1), (), {}),
    "complex, another axis": ("DFT", noise(2, 5, 3, 2), ("", 1), {}),
    "one side": ("DFT", noise(2, 6, 1), ("", 1), {"onesided": 1}),
    "back": ("DFT", noise(2, 6, 2), ("", -2), {"inverse": 1}),
    "cut": ("DFT", noise(2, 6, 1), (4, 1), {}),
    "filled up": ("DFT", noise(2, 6, 2), (9, 1), {}),
    "axis as attribute": ("DFT", noise(2, 6, 3, 1), (), {"axis": 2, "opset": 17}),
    "blocks apart": ("Col2Im", noise(2, 12, 6), ([4, 6], [2, 2]), {"strides": [2, 2]}),
    "blocks that overlap": (
        "Col2Im",
        noise(1, 18, 12),
        ([5, 7], [3, 3]),
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "blocks with holes": ("Col2Im", noise(1, 8, 12), ([5, 6], [2, 2]), {"dilations": [2, 2]}),
}


@pytest.mark.parametrize("kind, x, constants, options", CASES.values(), ids=CASES.keys())
def test_numbers(kind, x, constants, options):
    model = model_of(kind, x, *constants, **options)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = run_tvm(import_model(model), {"x": x})
    # Sums of up to nine values of order one, in another order.
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


def test_refused():
    with pytest.raises(UnsupportedOperatorError, match="transforms 8192 values"):
        import_model(model_of("DFT", noise(1, 8192, 1)))
