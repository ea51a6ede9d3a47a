"""Pools that round up, whose last window begins in the end pads: ONNX's inference of shapes counts it."""

import pytest

from tests.frontend.onnx.helpers import against_original, text_model


def pooled(op: str, size: str, attributes: str, opset: int):
    return text_model(
        f"g (float[1,2,{size}] x) => (float[?] y) {{ p = {op}<ceil_mode = 1, {attributes}>(x) "
        f"c = Relu(p) y = Flatten<axis = 0>(c) }}",
        opset=opset,
    )


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "size, attributes",
    {
        "5": "kernel_shape = [2], strides = [2], pads = [1, 1]",
        "5,6": "kernel_shape = [2, 3], strides = [2, 2], pads = [1, 0, 1, 0]",  # one ends beyond its pads
        "7,5,5": "kernel_shape = [2, 1, 2], strides = [2, 2, 2], pads = [1, 0, 1, 1, 0, 1]",
    }.items(),
)
def test_no_window_begins_in_the_end_pads(op, size, attributes, opset):
    model = pooled(op, size, attributes, opset)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    against_original(model)


def test_pads_that_a_mean_counts():
    counted = "count_include_pad = 1, kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]"
    model = pooled("AveragePool", "5,5", counted, 17)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    against_original(model)
