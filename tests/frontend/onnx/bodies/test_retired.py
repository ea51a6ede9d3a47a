"""Operators that ONNX has no more, beside ONNX Runtime, which runs them still."""

import pytest

from tests.frontend.onnx.helpers import against_original, text_model

NODES = {
    "Affine": "Affine <alpha = 2.0, beta = 0.5> (x)",
    "Crop": "Crop <border = [1, 0, 1, 2]> (x)",
    "Crop to a size": "Crop <border = [1, 1, 0, 0], scale = [2, 3]> (x)",
    "ImageScaler": "ImageScaler <scale = 0.5, bias = [0.1, 0.2, 0.3]> (x)",
    "MeanVarianceNormalization": "MeanVarianceNormalization <across_channels = 1> (x)",
    "of channels": "MeanVarianceNormalization (x)",
    "ParametricSoftplus": "ParametricSoftplus <alpha = 2.0, beta = 0.5> (x)",
    "Scale": "Scale <scale = 0.25> (x)",
    "ScaledTanh": "ScaledTanh <alpha = 2.0, beta = 0.5> (x)",
    "ThresholdedRelu": "ThresholdedRelu <alpha = 0.5> (x)",
    "above a negative number": "ThresholdedRelu <alpha = -0.5> (x)",
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@pytest.mark.parametrize("opset", [1, 7])
def test_retired_operators(node, opset):
    source = text_model(f"g (float[2,3,4,5] x) => (float[N,C,H,W] y) {{ y = {node} }}", opset=opset)
    del source.graph.output[0].type.tensor_type.shape.dim[:]
    source.graph.output[0].type.tensor_type.ClearField("shape")
    against_original(source)


def test_those_that_onnx_has_are_left_to_it():
    for node, opset in (("ThresholdedRelu <alpha = 0.5> (x)", 17), ("MeanVarianceNormalization (x)", 17)):
        against_original(
            text_model(f"g (float[2,3,4,5] x) => (float[2,3,4,5] y) {{ y = {node} }}", opset=opset)
        )
