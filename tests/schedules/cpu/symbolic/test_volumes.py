"""Convolutions of volumes whose height and width are known at run time: slices of windows are all there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.campaign.graphs.judge import by_onnxruntime


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slices", "taps", "pads"),
    [(1, (3, 1, 3), (0, 0, 1, 2, 0, 1)), (1, (3, 3, 3), (1,) * 6), (3, (3, 3, 3), (1,) * 6)],
)
def test_open_images_of_volumes_of_few_slices(slices, taps, pads):
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((4, 2, *taps)).astype("float32"), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", kernel_shape=taps, pads=pads)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2, slices, "h", "w"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "volumes", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    spans = {"x": [Span(1, 2), 2, slices, Span(3, 6), Span(3, 6)]}
    built = build_model(optimize_model(import_model(model, shapes=spans), "cpu"), use_shipped=False)
    for shape in ((1, 2, slices, 3, 3), (2, 2, slices, 5, 4), (2, 2, slices, 6, 6)):
        values = {"x": rng.standard_normal(shape).astype("float32")}
        np.testing.assert_allclose(
            built.run(values)[0], by_onnxruntime(model, values)[0], rtol=1e-4, atol=1e-5
        )
