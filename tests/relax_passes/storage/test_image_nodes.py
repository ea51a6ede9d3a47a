"""Bindings that can work on blocks of channels, and lanes past the channels."""

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.storage.image_nodes import (
    ActivationNode,
    ConcatNode,
    ConvNode,
    ElementwiseNode,
    PoolNode,
    node_of,
)
from tests.relax_passes.graphs import constant, module, op, weights
from tests.relax_passes.rewrite import kernel

BLOCK = 4
IMAGE = (2, 6, 5, 5)
CHANNELS = constant(weights(6, 1, 1))


def last_node(build, shape=IMAGE):
    """Node of the result of ``build(x, y)``; images x and y are computed, as blocks want them."""
    graph = Graph(module({"x": shape, "y": shape}, lambda emit, x, y: build(x, y)))
    return node_of(graph, graph.bindings()[-1], BLOCK, graph.functions())


CONV = Conv2d(*IMAGE, filters=8, kernel=(1, 1))
NODES = {
    "convolution": (lambda x, y: kernel(CONV, x, constant(weights(8, 6, 1, 1))), ConvNode),
    "activation": (lambda x, y: kernel(Elementwise(IMAGE, "relu"), x), ActivationNode),
    "maximum in windows": (lambda x, y: op.nn.max_pool2d(x, (2, 2)), PoolNode),
    "mean of the image": (lambda x, y: op.mean(x, [2, 3], keepdims=True), PoolNode),
    "sum of images": (lambda x, y: op.add(x, y), ElementwiseNode),
    "constant per channel": (lambda x, y: op.multiply(x, CHANNELS), ElementwiseNode),
}


@pytest.mark.parametrize("build, node", NODES.values(), ids=NODES.keys())
def test_what_works_on_blocks(build, node):
    assert type(last_node(build)) is node


OTHERS = {
    "parts of blocks side by side": lambda x, y: op.concat([x, y], 1),
    "rows side by side": lambda x, y: op.concat([x, y], 2),
    "mean over channels": lambda x, y: op.mean(x, [1], keepdims=True),
    "channels broadcast": lambda x, y: op.add(x, op.mean(y, [1], keepdims=True)),
    "a constant alone": lambda x, y: op.add(constant(weights(*IMAGE)), constant(weights(*IMAGE))),
    "no image": lambda x, y: op.exp(op.reshape(x, (2, 150))),
    "another dtype": lambda x, y: op.astype(x, "float16"),
    "a kernel of rows": lambda x, y: kernel(Softmax(IMAGE[:-1], IMAGE[-1]), x),
    "moved channels": lambda x, y: op.permute_dims(x, [0, 1, 3, 2]),
}


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS.keys())
def test_what_does_not(build):
    assert last_node(build) is None


def test_whole_blocks_side_by_side():
    assert type(last_node(lambda x, y: op.concat([x, y], 1), (2, 8, 5, 5))) is ConcatNode


@pytest.mark.parametrize(
    "build, moved",
    [
        (lambda x, y: op.nn.relu(x), False),
        (lambda x, y: op.tanh(x), False),
        (lambda x, y: op.exp(x), True),
        (lambda x, y: op.sigmoid(x), True),
        (lambda x, y: op.clip(x, 0, 6), False),
        (lambda x, y: op.clip(x, 1, 6), True),
        (lambda x, y: op.add(x, y), False),
        (lambda x, y: op.add(x, constant(1.0)), True),
        (lambda x, y: op.add(x, CHANNELS), False),  # laid out with zeros in these lanes
        (lambda x, y: op.divide(x, constant(2.0)), False),
        (lambda x, y: op.divide(x, CHANNELS), True),  # 0 / 0
        (lambda x, y: op.divide(x, y), True),
        (lambda x, y: op.maximum(x, constant(-1.0)), False),
        (lambda x, y: op.multiply(x, constant(weights(1, 1, 5, 5))), True),  # not known: one value per pixel
    ],
)
def test_zeros_past_the_channels(build, moved):
    assert last_node(build).moves_zero == moved
