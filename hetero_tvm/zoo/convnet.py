"""Residual convolution networks: ResNet-50 and MobileNetV2, with Conv and BatchNormalization nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.zoo.graph import GraphBuilder


@dataclass(frozen=True)
class ResNetConfig:
    """Blocks and bottleneck widths of the stages; a block widens its bottleneck four times."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    widths: tuple[int, ...] = (64, 128, 256, 512)
    stem: int = 64
    image: int = 224
    classes: int = 1000


@dataclass(frozen=True)
class MobileNetConfig:
    """Rows of (expansion, channels, repeats, stride), as in the MobileNetV2 paper."""

    # fmt: off
    rows: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )
    # fmt: on
    stem: int = 32
    last: int = 1280
    image: int = 224
    classes: int = 1000


def _conv_bn(
    g: GraphBuilder,
    conv: str,
    norm: str,
    x: str,
    c_in: int,
    c_out: int,
    kernel: int,
    *,
    stride: int = 1,
    group: int = 1,
    gain: float = 1.0,
    before: float = 1.0,
) -> str:
    """Conv without bias, then BatchNormalization.

    ``before`` is the mean square of one input value: the running statistics are drawn around
    what the convolution then really gives, as training would have left them.
    """
    fan_in = c_in // group * kernel * kernel
    pads = [kernel // 2] * 4
    with g.scope(conv):
        weight = g.normal("weight", (c_out, c_in // group, kernel, kernel), np.sqrt(1.0 / (fan_in * before)))
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads, "dilations": [1, 1]}
        y = g.op("Conv", x, weight, **window, group=group)
    with g.scope(norm):
        gamma = g.normal("weight", (c_out,), 0.1 * gain, mean=gain)
        beta = g.normal("bias", (c_out,), 0.1)
        mean = g.normal("running_mean", (c_out,), 0.2)
        variance = g.parameter("running_var", np.exp(g.draw("running_var", (c_out,), 0.2)))
        return g.op("BatchNormalization", y, gamma, beta, mean, variance, epsilon=1e-5, momentum=0.9)


def build_resnet(config: ResNetConfig, name: str, *, batch: int, seed: int) -> onnx.ModelProto:
    """Build a ResNet: ``input`` float32 [batch, 3, image, image] -> ``logits`` [batch, classes]."""
    g = GraphBuilder(name, opset=13, seed=seed)
    x = g.input("input", TensorProto.FLOAT, (batch, 3, config.image, config.image))
    x = _conv_bn(g, "conv1", "bn1", x, 3, config.stem, 7, stride=2)
    with g.scope("relu"):
        x = g.op("Relu", x)
    with g.scope("maxpool"):
        x = g.op(
            "MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, dilations=[1, 1], ceil_mode=0
        )
    channels = config.stem
    for stage, (blocks, width) in enumerate(zip(config.blocks, config.widths, strict=True), start=1):
        for block in range(blocks):
            with g.scope(f"layer{stage}/layer{stage}.{block}"):
                stride = 2 if stage > 1 and block == 0 else 1
                x = _bottleneck(g, x, channels, width, stride, first=block == 0)
            channels = 4 * width
    with g.scope("avgpool"):
        x = g.op("GlobalAveragePool", x)
    x = g.op("Flatten", x, axis=1)
    g.output("logits", g.gemm("fc", x, channels, config.classes), (batch, config.classes))
    return g.finish()


def _bottleneck(g: GraphBuilder, x: str, channels: int, width: int, stride: int, *, first: bool) -> str:
    y = _conv_bn(g, "conv1", "bn1", x, channels, width, 1)
    with g.scope("relu"):
        y = g.op("Relu", y)
    y = _conv_bn(g, "conv2", "bn2", y, width, width, 3, stride=stride, before=0.5)
    with g.scope("relu"):
        y = g.op("Relu", y)
    # A small last gamma keeps the residual stream O(1), as trained networks do.
    y = _conv_bn(g, "conv3", "bn3", y, width, 4 * width, 1, gain=0.4, before=0.5)
    if first:
        x = _conv_bn(
            g, "downsample/downsample.0", "downsample/downsample.1", x, channels, 4 * width, 1, stride=stride
        )
    with g.scope("relu"):
        return g.op("Relu", g.op("Add", y, x))


def build_mobilenet(config: MobileNetConfig, name: str, *, batch: int, seed: int) -> onnx.ModelProto:
    """Build a MobileNetV2: ``input`` float32 [batch, 3, image, image] -> ``logits`` [batch, classes]."""
    g = GraphBuilder(name, opset=13, seed=seed)
    x = g.input("input", TensorProto.FLOAT, (batch, 3, config.image, config.image))
    with g.scope("features"):
        x = _relu6(
            g,
            _conv_bn(g, "features.0/features.0.0", "features.0/features.0.1", x, 3, config.stem, 3, stride=2),
        )
        channels, index = config.stem, 1
        for expansion, width, repeats, stride in config.rows:
            for repeat in range(repeats):
                with g.scope(f"features.{index}/conv"):
                    x = _inverted_residual(g, x, channels, width, expansion, stride if repeat == 0 else 1)
                channels, index = width, index + 1
        x = _conv_bn(g, f"features.{index}.0", f"features.{index}.1", x, channels, config.last, 1)
        x = _relu6(g, x)
    x = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
    x = g.gemm("classifier/classifier.1", x, config.last, config.classes)
    g.output("logits", x, (batch, config.classes))
    return g.finish()


def _relu6(g: GraphBuilder, x: str) -> str:
    return g.op("Clip", x, g.const(0.0), g.const(6.0))


def _inverted_residual(
    g: GraphBuilder, x: str, channels: int, width: int, expansion: int, stride: int
) -> str:
    inner, y, step = channels * expansion, x, 0
    if expansion != 1:
        y = _relu6(g, _conv_bn(g, "conv.0/conv.0.0", "conv.0/conv.0.1", x, channels, inner, 1))
        step = 1
    conv, norm = (f"conv.{step}/conv.{step}.{part}" for part in (0, 1))
    y = _conv_bn(g, conv, norm, y, inner, inner, 3, stride=stride, group=inner, before=0.5)
    y = _conv_bn(g, f"conv.{step + 1}", f"conv.{step + 2}", _relu6(g, y), inner, width, 1, before=0.5)
    return g.op("Add", x, y) if stride == 1 and channels == width else y
