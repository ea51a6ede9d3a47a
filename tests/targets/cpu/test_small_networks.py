"""Small networks of transposed and plain convolutions on the CPU: onnxruntime's numbers, all from spaces."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.api import build_model, import_model, optimize_model

TOLERANCE = 1e-5


class Network:
    """An ONNX graph of convolutions, operator after operator."""

    def __init__(self, shape):
        self.rng = np.random.default_rng(0)
        self.nodes, self.weights = [], []
        self.shape, self.value = shape, "x"

    def add(self, kind, inputs, **attributes):
        self.value = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, inputs, [self.value], f"{kind}{len(self.nodes)}", **attributes)
        )
        return self.value

    def constant(self, *shape):
        name = f"w{len(self.weights)}"
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        values = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, inputs, outputs, *kernel, **attributes):
        weights = [self.constant(outputs, inputs, *kernel), self.constant(outputs)]
        return self.add("Conv", [self.value, *weights], **attributes)

    def up(self, inputs, outputs, *kernel, **attributes):
        weights = [self.constant(inputs, outputs, *kernel), self.constant(outputs)]
        return self.add("ConvTranspose", [self.value, *weights], **attributes)

    def model(self):
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(self.value, TensorProto.FLOAT, None)],
            self.weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


def vocoder(frames=25, channels=32):
    """Rows that grow: transposed convolutions, each followed by dilated ones with a residual."""
    net = Network((1, 80, frames))
    net.conv(80, channels, 7, pads=[3, 3])
    for stride in (8, 4):
        net.add("LeakyRelu", [net.value], alpha=0.1)
        net.up(channels, channels // 2, 2 * stride, strides=[stride], pads=[stride // 2, stride // 2])
        channels //= 2
        for dilation in (1, 3):
            before = net.value
            net.add("LeakyRelu", [net.value], alpha=0.1)
            net.conv(channels, channels, 3, dilations=[dilation], pads=[dilation, dilation])
            net.add("Add", [before, net.value])
    net.add("LeakyRelu", [net.value], alpha=0.1)
    net.conv(channels, 1, 7, pads=[3, 3])
    net.add("Tanh", [net.value])
    return net


def unet(size=32, channels=16):
    """Images that shrink by pooling and grow by transposed convolutions, with a shortcut between."""
    net = Network((1, 3, size, size))
    net.conv(3, channels, 3, 3, pads=[1] * 4)
    top = net.add("Relu", [net.value])
    net.add("MaxPool", [net.value], kernel_shape=[2, 2], strides=[2, 2])
    net.conv(channels, 2 * channels, 3, 3, pads=[1] * 4)
    net.add("Relu", [net.value])
    net.up(2 * channels, channels, 2, 2, strides=[2, 2])
    net.add("Concat", [top, net.value], axis=1)
    net.conv(2 * channels, channels, 3, 3, pads=[1] * 4)
    net.add("Relu", [net.value])
    net.up(channels, 4, 4, 4, strides=[2, 2], pads=[1] * 4)
    net.add("Sigmoid", [net.value])
    return net


@pytest.mark.thorough
@pytest.mark.parametrize("make", [vocoder, unet])
def test_numbers_and_kernels(make):
    net = make()
    model = net.model()
    optimized = optimize_model(import_model(model), "cpu")
    kinds = [task.op.kind for task in optimized.tasks if task.op is not None]
    assert "conv2d" in kinds and "interleave" in kinds
    assert all(task.space is not None for task in optimized.tasks if task.op is not None)
    x = np.random.default_rng(1).standard_normal(net.shape).astype(np.float32)
    (y,) = build_model(optimized, use_shipped=False).run({"x": x})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    assert np.abs(y - expected).max() <= TOLERANCE * np.abs(expected).max()
