"""Convolutional nets as exporters write them."""

from collections import Counter

import pytest

from hetero_tvm import zoo


@pytest.mark.parametrize("name", ["resnet50-tiny", "mobilenetv2-tiny"])
def test_every_convolution_is_normalised_and_has_no_bias(name):
    nodes = zoo.build(name).graph.node
    counts = Counter(node.op_type for node in nodes)
    assert counts["BatchNormalization"] == counts["Conv"] > 0
    assert all(len(node.input) == 2 for node in nodes if node.op_type == "Conv")


def test_activations_and_residuals():
    resnet = Counter(node.op_type for node in zoo.build("resnet50-tiny").graph.node)
    assert resnet["Add"] == 3 and resnet["Relu"] == 10 and resnet["MaxPool"] == 1
    mobilenet = zoo.build("mobilenetv2-tiny").graph.node
    assert any(node.op_type == "Clip" for node in mobilenet)
    convolutions = [node for node in mobilenet if node.op_type == "Conv"]
    groups = [a.i for node in convolutions for a in node.attribute if a.name == "group"]
    assert sum(group > 1 for group in groups) == 3  # a depthwise convolution per block
